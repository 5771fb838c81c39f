"""The page of a program, in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Browser

import pjrt
from pjrt.models import program_page, report

PROGRAM = """
module @tower {
  func.func @main(%x: tensor<8x16xf32> loc("images"), %w: tensor<16x16xf32> {jax.buffer_donor = true} loc("weights"))
      -> (tensor<8x16xf32> {jax.result_info = "scores"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32> loc("jit(f)/lower/dot"("tower.py":3:7))
    %1 = stablehlo.tanh %0 : tensor<8x16xf32> loc("jit(f)/lower/tanh"("tower.py":4:7))
    %2 = func.call @square(%1) : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("jit(f)/upper/square"("tower.py":8:7))
    %3 = stablehlo.add %2, %x : tensor<8x16xf32> loc("jit(f)/upper/add"("tower.py":9:7))
    %n = stablehlo.constant dense<3> : tensor<i32> loc("jit(f)/upper/while"("tower.py":12:7))
    %4:2 = stablehlo.while(%s = %3, %i = %n) : tensor<8x16xf32>, tensor<i32>
     cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
     } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %less = stablehlo.subtract %i, %one : tensor<i32>
      %next = stablehlo.exponential %s : tensor<8x16xf32>
      stablehlo.return %next, %less : tensor<8x16xf32>, tensor<i32>
     } loc("jit(f)/upper/while"("tower.py":12:7))
    return %4#0 : tensor<8x16xf32>
  }
  func.func private @square(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %0 = stablehlo.multiply %x, %x : tensor<8x16xf32> loc("square"("tower.py":20:3))
    return %0 : tensor<8x16xf32>
  }
}
"""

CHOOSE = "const e = document.getElementById('grouping'); e.value = arguments[0]; e.dispatchEvent(new Event('change'))"
"""Choose a grouping, as a user does."""

Show = Callable[[str], Browser]


@pytest.fixture
def show(window: Browser, tmp_path: Path) -> Show:
    """A function that opens the page of a program; after the test the console must be empty."""

    def show(text: str) -> Browser:
        path = tmp_path / "page.html"
        path.write_text(program_page(text))
        window.open(path)
        assert window.console() == []
        return window

    return show


def names(window: Browser, selector: str = ".node .name") -> list[str]:
    found: list[str] = window.run(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
    )
    return found


def groups(window: Browser) -> dict[str, bool]:
    """Return the visible groups, and whether each is open."""
    script = "return [...document.querySelectorAll('.group')].map(e => [e.dataset.group, e.ariaExpanded === 'true'])"
    return dict(window.run(script))


def details(window: Browser) -> str:
    text: str = window.run("return document.getElementById('details').innerText")
    return text


def test_the_page_shows_the_facts_of_the_program(show: Show) -> None:
    window = show(PROGRAM)
    text = window.run("return document.body.innerText")
    for shown in ("tower", "jit(f)", "images", "weights", "f32[8,16]", "donated", "scores", "tower.py:3"):
        assert shown in text, shown
    # 2 * 8 * 16 * 16 for the product; tanh, exponential and additions in other columns.
    assert re.search(r"dot_general\s+f32\[8,16\]\s+4\.10 k", text)
    assert names(window, "h2")[:2] == ["Graph", "Memory of a device"]


def test_a_group_folds_and_unfolds_by_a_click(show: Show) -> None:
    window = show(PROGRAM)
    window.click("#fold")
    assert names(window) == []
    assert groups(window) == {"main": False, "square": False}
    window.click("[data-group='square']")
    assert groups(window) == {"main": False, "square": True}
    assert names(window) == ["%arg0", "multiply", "results"]
    window.click("[data-group='square'] > .name")
    assert names(window) == []
    window.click("#unfold")
    assert groups(window) == {"main": True, "jit(f)": True, "lower": True, "upper": True, "while": True, "square": True}
    assert names(window).count("results") == 4
    assert {"images", "weights", "dot_general", "exponential", "func.call @square"} <= set(names(window))
    assert window.console() == []


def test_groups_by_source_line_and_by_function(show: Show) -> None:
    window = show(PROGRAM)
    choose = (
        "const e = document.getElementById('grouping'); e.value = arguments[0]; e.dispatchEvent(new Event('change'))"
    )
    window.run(choose, "source")
    window.click("#unfold")
    assert {"tower.py", "line 3", "line 4", "line 20"} <= set(groups(window))
    window.run(CHOOSE, "function")
    window.click("#unfold")
    assert groups(window) == {"main": True, "while": True, "square": True}


def test_an_operation_shows_its_details_and_leads_to_its_neighbours(show: Show) -> None:
    window = show(PROGRAM)
    window.click("#unfold")
    (index,) = window.run(
        "return [...document.querySelectorAll('.node')].filter(e => e.textContent.startsWith('tanh'))"
        ".map(e => e.dataset.node)"
    )
    window.click(f"[data-node='{index}']")
    text = details(window)
    for shown in ("tanh %1", "f32[8,16]", "512 B", "tower.py:4:7", "dot_general", "@square func.call"):
        assert shown in text, shown
    assert window.run("return document.querySelectorAll('.link.in').length") == 1
    assert window.run("return document.querySelectorAll('.link.out').length") == 1
    window.click("#details ul button")
    assert details(window).startswith("dot_general %0")
    assert window.run("return document.querySelector('.selected .name').textContent") == "dot_general"


def test_search_reveals_what_is_folded(show: Show) -> None:
    window = show(PROGRAM)
    window.click("#fold")
    window.write("#search", "constant s32")
    assert names(window, "#matches") == ["4 found"]
    assert window.run("return document.querySelectorAll('.match').length") == 1
    window.click("#next")
    assert names(window, "#matches") == ["1 of 4"]
    assert details(window).startswith("constant")
    assert "constant" in names(window)
    window.write("#search", "\ue007")  # Enter
    assert names(window, "#matches") == ["2 of 4"]
    window.run(
        "const e = document.getElementById('search'); e.value = 'nothing such'; e.dispatchEvent(new Event('input'))"
    )
    assert names(window, "#matches") == ["0 found"]
    window.click("#next")
    assert window.console() == []


def test_the_memory_chart_leads_to_the_operation(show: Show) -> None:
    window = show(PROGRAM)
    assert names(window, ".chart text.peak") == ["peak"]
    window.click("#memory svg")
    assert details(window).startswith(
        ("func.call", "add", "exponential", "multiply", "constant", "compare", "subtract")
    )


def test_colours_by_cost(show: Show) -> None:
    window = show(PROGRAM)
    window.click("#unfold")
    window.run(
        "const e = document.getElementById('colouring'); e.value = 'flops'; e.dispatchEvent(new Event('change'))"
    )
    heat = (
        "return Object.fromEntries([...document.querySelectorAll('.node')].map(e => "
        "[e.querySelector('.name').textContent, e.querySelector('.edge').getAttribute('fill-opacity')]))"
    )
    assert (window.run(heat)["dot_general"], window.run(heat)["images"]) == ("1", "0")


def test_light_and_dark(show: Show) -> None:
    window = show(PROGRAM)
    back = "return getComputedStyle(document.body).backgroundColor"
    try:
        seen = [window.emulate(scheme) or window.run(back) for scheme in ("light", "dark")]
    finally:
        window.emulate("light")
    assert seen == ["rgb(255, 255, 255)", "rgb(20, 24, 31)"]


HOSTILE = "<!--<script></script ></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def test_texts_of_the_program_are_never_markup(show: Show) -> None:
    text = """
    module @"HOSTILE" {
      func.func @main(%x: tensor<4xf32> {test.note = "HOSTILE"} loc("HOSTILE"))
          -> (tensor<4xf32> {jax.result_info = "HOSTILE"}) {
        %0 = stablehlo.custom_call @"HOSTILE"(%x) {backend_config = "HOSTILE", api_version = 2 : i32}
          : (tensor<4xf32>) -> tensor<4xf32> loc("HOSTILE/a/b"("HOSTILE":3:7))
        return %0 : tensor<4xf32>
      }
    }""".replace("HOSTILE", HOSTILE)
    window = show(text)
    window.click("#unfold")
    click = "e.dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    window.run(f"[...document.querySelectorAll('.node')].forEach(e => {click})")
    assert window.run("return window.hacked") is None
    assert window.run("return document.querySelectorAll('img').length") == 0
    assert window.run("return document.scripts.length") == 2
    assert HOSTILE in window.run("return document.querySelector('h1').textContent + document.body.textContent")
    assert window.run("return document.title").startswith(HOSTILE)
    assert window.console() == []


def test_the_policy_stops_scripts_of_others(show: Show) -> None:
    """The second wall: a script that is in the page nevertheless does not run."""
    window = show(PROGRAM)
    window.run(
        "const e = document.createElement('script'); e.textContent = 'window.hacked = 1'; document.body.append(e)"
    )
    assert window.run("return window.hacked") is None
    assert any("Content Security Policy" in message for message in window.console())


def chain(length: int) -> str:
    lines = [f"%{n} = stablehlo.tanh %{n - 1 if n else 'x'} : tensor<4xf32>" for n in range(length)]
    return "\n".join(
        ["func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {", *lines, f"return %{length - 1} : tensor<4xf32>", "}"]
    )


@pytest.mark.full
def test_a_large_program_is_folded(show: Show) -> None:
    text = chain(5000)
    assert len(program_page(text)) < 2_000_000
    window = show(text)
    assert len(groups(window)) + len(names(window)) < 60
    window.click("#unfold")
    assert len(names(window)) <= 1500
    assert "some groups stay folded" in window.run("return document.body.innerText")
    window.write("#search", "%4321")
    for grouping in ("function", "source"):
        window.run(CHOOSE, grouping)
        assert len(groups(window)) + len(names(window)) < 60
        window.click("#next")
        assert details(window).startswith("tanh %4321")
        assert len(groups(window)) + len(names(window)) < 300
    assert window.console() == []


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize(
    ("scopes", "opened"),
    [
        (["jit(f)/Dense_0", "jit(f)/Dense_1"], ["", "main", "jit(f)"]),
        (["jit(f)/jit(g)/Dense_0", "jit(f)/jit(g)/Dense_1"], ["", "main", "jit(f)/jit(g)"]),
        (["a", "b"], ["", "main"]),
        (["", ""], ["", "main"]),
    ],
)
def test_the_first_level_with_several_parts_is_open(scopes: list[str], opened: list[str]) -> None:
    """Without a browser: the groups of many operations, of which none would be opened for their small number."""
    plain = {"function": "main", "parent": -1, "operands": [], "shortName": "add", "name": "add", "kind": "operation"}
    nodes = [{**plain, "index": index, "scope": scopes[index // 100]} for index in range(200)]
    nodes += [{**plain, "index": 200 + i, "scope": "", "name": "argument", "kind": "argument"} for i in range(20)]
    groups = (Path(report.__file__).parent / "groups.js").read_text()
    code = f"""{groups}
        const {{root}} = groupsOf({json.dumps(nodes)}, 'scope');
        openUntilDivided(root);
        const opened = [];
        forEachGroup(root, (group) => {{ if (group.isOpen) opened.push(group.label); }});
        console.log(JSON.stringify(opened));"""
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == opened


def test_a_page_needs_no_network() -> None:
    page = program_page(PROGRAM)
    links = set(re.findall(r"https?://[^'\"\s)]+", page))
    assert links == {"http://www.w3.org/2000/svg"}, "the name of the SVG namespace only"
    assert "default-src 'none'" in page


def test_the_data_of_a_page_is_no_markup() -> None:
    """The data has no sign that means something to the parser of HTML: no end tag and no comment can begin in it."""
    page = program_page(PROGRAM.replace("@tower", '@"<!--<script></script >&amp;"'))
    (block,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert "script" in block
    assert not set("<>&") & set(block)


def test_a_program_whose_cost_and_memory_are_unknown(show: Show) -> None:
    window = show("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n return %x : tensor<?xf32>\n}")
    text = window.run("return document.body.innerText")
    assert "The memory is unknown" in text
    assert "f32[?]" in text


def test_a_dynamic_program_for_given_shapes(window: Browser, tmp_path: Path) -> None:
    text = """func.func @main(%x: tensor<?x16xf32> loc("images")) -> tensor<?x16xf32> {
      %0 = stablehlo.add %x, %x : tensor<?x16xf32>
      return %0 : tensor<?x16xf32>
    }"""
    (tmp_path / "page.html").write_text(program_page(text, {"images": (8, 16)}))
    window.open(tmp_path / "page.html")
    window.click("#unfold")
    assert names(window) == ["images", "add", "results"]
    shown = window.run("return document.body.innerText")
    assert re.search(r"FLOPs\s+128\s", shown)
    assert re.search(r"peak memory of a device\s+1\.0 KiB", shown)
    with pytest.raises(pjrt.InvalidArgumentError, match="found a shape for 'x'"):
        program_page(text, {"x": (8, 16)})


def test_a_program_of_several_partitions(show: Show) -> None:
    sharding = '{mhlo.sharding = "{devices=[2]<=[2]}"}'
    window = show(f"""module attributes {{mhlo.num_partitions = 2 : i32}} {{
      func.func @main(%x: tensor<8xf32> {sharding}) -> (tensor<8xf32> {sharding}) {{
        %0 = stablehlo.add %x, %x : tensor<8xf32>
        return %0 : tensor<8xf32>
      }}
    }}""")
    text = window.run("return document.body.innerText")
    assert "1 replicas × 2 partitions" in text
    assert "{devices=[2]<=[2]}" in text
    assert re.search(r"peak memory of a device\s+32 B", text), "half of the argument, and half of the result"


def test_an_executable_has_no_page(tmp_path: Path) -> None:
    with pjrt.client("cpu") as client:
        pjrt.save_executable(client.compile(chain(2)), tmp_path / "chain.bin")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a file with a program, found a saved executable"):
        program_page(tmp_path / "chain.bin")
