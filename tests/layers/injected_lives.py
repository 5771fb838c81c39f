"""A program: an error is injected into each function of the ABI, one after the other, while a whole life with the tiny
plugin runs through our own loader, with the layer ``validate`` above. It prints what it saw as JSON."""

from __future__ import annotations

import faulthandler
import gc
import json
import sys

from tiny.control import Control
from tiny.life import Life

import pjrt
from pjrt.capi.layer.schema import FUNCTIONS
from pjrt.layers import findings, inject, injections, wrap

faulthandler.dump_traceback_later(270, exit=True)


class Lives:
    """Lives with one plugin, whose layer ``inject`` gets other rules for each."""

    def __init__(self, library: str) -> None:
        self.control = Control(library)
        self.plugin = wrap(library, ["validate", "inject"], validate="limit=1000")
        self.unraisable: list[str] = []
        sys.unraisablehook = lambda entry: self.unraisable.append(str(entry.exc_value))

    def live(self, rules: str) -> list[str]:
        """Live once under these rules, and return the messages of all errors."""
        self.unraisable.clear()
        inject(self.plugin, rules)
        errors = Life(self.plugin).run()
        inject(self.plugin, "")
        gc.collect()
        return [str(error) for error in errors] + self.unraisable

    def called(self) -> list[str]:
        """Return the functions that a healthy life calls and that can fail."""
        names = [name for name, function in FUNCTIONS.items() if function.result == "ERROR"]
        called = []
        for start in range(0, len(names), 30):
            rules = [{"call": name, "slow": "0ns"} for name in names[start : start + 30]]
            inject(self.plugin, rules)
            assert Life(self.plugin).run() == [], "a healthy life failed"
            called += [each["call"] for each, rule in zip(rules, injections(self.plugin), strict=True) if rule.calls]
        return called

    def fail(self, function: str, code: str) -> dict[str, object]:
        """Live with an error in the first call of a function, and return what came of it."""
        before = self.control.live()
        message = f"no {function} today"
        number = len(findings(self.plugin))
        messages = self.live(f"call={function},nth=1,error={code},message={message}")
        return {
            "reported": any(message in each for each in messages),
            "messages": messages,
            "left": self.control.left_over(before),
            "findings": [str(finding) for finding in findings(self.plugin)[number:]],
        }


if __name__ == "__main__":
    lives = Lives(sys.argv[1])
    functions = [name for name in lives.called() if name not in sys.argv[2:]]
    codes = [code.name for code in pjrt.StatusCode if code.name not in ("OK", "UNIMPLEMENTED")]
    results = {name: lives.fail(name, codes[place % len(codes)]) for place, name in enumerate(functions)}
    print(json.dumps({"results": results, "last": lives.live("")}))
