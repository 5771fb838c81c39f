"""Reports: self-contained HTML pages, and Graphviz text, of programs and benchmarks.

A page needs no network: its styles, scripts and data are inside it. This package must not know any device.
"""
