"""Programs are sent to a plugin at its StableHLO version, if they can be written at it."""

from __future__ import annotations

import pytest

import pjrt
from pjrt import stablehlo
from pjrt.api.capability import Capabilities, Feature
from pjrt.capi import _program

ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


@pytest.mark.full
@pytest.mark.parametrize("version", [(1, 0, 0), (1, 9, 2), (1, 17, 0)])
def test_text_is_written_at_the_plugins_version(version: tuple[int, ...]) -> None:
    sent, doubt = _program.prepared(ADD, {"stablehlo_current_version": version})
    assert doubt is None
    written = stablehlo.artifact_version(sent)
    assert written is not None
    assert written <= stablehlo.Version.of(version)
    assert "stablehlo.add" in stablehlo.to_text(sent)


def test_an_artifact_that_is_old_enough_is_sent_unchanged() -> None:
    artifact = stablehlo.serialize(pjrt.Program(ADD.encode()), "1.4.0")
    sent, doubt = _program.prepared(artifact, {"stablehlo_current_version": (1, 17, 0)})
    assert (sent, doubt) == (artifact, None)


def test_without_a_version_programs_are_sent_unchanged() -> None:
    sent, doubt = _program.prepared(ADD, {})
    assert sent.code == ADD.encode()
    assert doubt is None


DYNAMIC = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.add %x, %x : tensor<?xf32>
  return %0 : tensor<?xf32>
}"""


@pytest.mark.full
def test_unknown_sizes_are_refused_before_a_compiler_that_may_crash_over_them() -> None:
    of_xla = Capabilities(features={Feature.DYNAMIC_SHAPES: False})
    with pytest.raises(pjrt.InvalidArgumentError, match=r"does not compile programs with dynamic shapes.*shapes=\{0"):
        _program.prepared(DYNAMIC, {}, None, of_xla)
    assert "4xf32" in stablehlo.to_text(_program.prepared(DYNAMIC, {}, {0: (4,)}, of_xla)[0])
    for program in (ADD, "module { func.func @main() { foo.bar } }", pjrt.Program(b"anything", format="own")):
        assert _program.prepared(program, {}, None, of_xla)[0].code
    assert _program.prepared(DYNAMIC, {}, None, Capabilities())[0].code == DYNAMIC.encode()


def test_programs_of_a_format_of_the_plugins_own_are_not_looked_at() -> None:
    program = pjrt.Program(b"anything", format="own")
    assert _program.prepared(program, {"stablehlo_current_version": (1, 0, 0)}) == (program, None)


def test_another_dialect_goes_as_it_is_and_the_doubt_is_told_with_the_plugins_error() -> None:
    foreign = "module { func.func @main() { foo.bar } }"
    sent, doubt = _program.prepared(foreign, {"stablehlo_current_version": (1, 0, 0)})
    assert sent.code == foreign.encode()
    assert doubt is not None
    error = _program.doubted(pjrt.InternalError("the plugin's own words"), sent, doubt)
    assert error.message == "the plugin's own words"
    assert "foo" in error.__notes__[0]


def test_without_jaxlib_programs_are_sent_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise pjrt.FailedPreconditionError("jaxlib is not installed")

    monkeypatch.setattr(stablehlo, "serialize", missing)
    sent, doubt = _program.prepared(ADD, {"stablehlo_current_version": (1, 0, 0)})
    assert sent.code == ADD.encode()
    assert isinstance(doubt, pjrt.FailedPreconditionError)


def test_what_is_no_program_is_refused_before_it_is_sent(plugin: pjrt.Plugin) -> None:
    with plugin.client() as client:
        with pytest.raises(pjrt.InvalidArgumentError):
            client.compile("this is no program")
        with pytest.raises(pjrt.PjrtError):
            client.compile(stablehlo.serialize(pjrt.Program(ADD.encode()), "1.4.0").code[:40])
