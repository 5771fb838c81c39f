"""Programs: reading, telling apart, converting and looking into what devices compile (floor 2: knows ``api`` only; no devices, no buffers)."""
