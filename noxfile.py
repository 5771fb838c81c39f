"""The jobs that are run by hand, each in an environment of its own: ``nox -l`` lists them, ``nox -s JOB`` runs one.

What must pass before a change lands is ``.ci/run``. CONTRIBUTING.md says of each job why it is not in there.
"""

from __future__ import annotations

import nox

nox.options.sessions = []
nox.options.default_venv_backend = "venv"


def _run(session: nox.Session, extras: str, *command: str, packages: tuple[str, ...] = ()) -> None:
    """Install the package with some extras, and run a command with the arguments behind ``--``."""
    session.install("-e", f".[{extras}]", *packages)
    session.run(*command, *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run changed programs and messages: --target cpu|reference|parse|remote --state FILE."""
    _run(session, "test", "python", "-m", "benchmarks.fuzz")


@nox.session
def random_calls(session: nox.Session) -> None:
    """Call the runtime in C at random under sanitizers: --calls N --sanitizer address,undefined|thread."""
    _run(session, "test", "python", "tests/native/random_calls.py")


@nox.session
def random_kills(session: nox.Session) -> None:
    """Kill, stop and fork workers and hosts at random moments: --kills N --stops N --forks N --hosts N --clients N."""
    _run(session, "test", "python", "tests/native/random_kills.py")


@nox.session
def random_sessions(session: nox.Session) -> None:
    """Attack a server, end its clients at random moments: --sessions N --messages N --programs N --beside SECONDS."""
    _run(session, "test", "python", "tests/remote/random_sessions.py")


@nox.session
def wrong_answers(session: nox.Session) -> None:
    """Run the conformance programs of all operations: --device iree|cpu --state FILE."""
    _run(session, "test,iree", "python", "-m", "benchmarks.wrong_answers")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run all benchmarks; needs a quiet machine."""
    _run(session, "test-full", "python", "-m", "benchmarks.run_all")


@nox.session
def compare(session: nox.Session) -> None:
    """Compare the speed of this tree with that of a commit: BASE."""
    _run(session, "test", "python", "-m", "benchmarks.compare")


@nox.session
def exits(session: nox.Session) -> None:
    """End processes while their threads work: --device cpu --times 200."""
    _run(session, "test", "python", "-m", "benchmarks.exits")


@nox.session
def mutants(session: nox.Session) -> None:
    """Run the conformance suite on a hundred plugins with one fault each; --record after new checks."""
    _run(session, "test", "python", "tests/conformance/mutants/run.py")


@nox.session
def reports(session: nox.Session) -> None:
    """Write the reports in docs/conformance.md: what the suite finds in vendors' plugins."""
    _run(session, "test,vendor", "python", "tools/gen_conformance_reports.py")


@nox.session
def torch(session: nox.Session) -> None:
    """Run PyTorch through torchax on every built-in device."""
    torch = ("torch==2.13.0", "torchax", "optax")
    _run(session, "xla,iree", "python", "tests/frameworks/torchax_job.py", packages=("jax", *torch))


@nox.session
def torch_tpu(session: nox.Session) -> None:
    """Run PyTorch through TorchTPU on the built-in devices; 6 GB of packages."""
    torch = ("torch==2.11.*", "torch-tpu==0.2.0", "transformers")
    _run(session, "xla", "python", "tests/frameworks/torch_tpu_job.py", packages=torch)


@nox.session
def torch_xla(session: nox.Session) -> None:
    """Run PyTorch/XLA on every built-in device; 7 GB of packages."""
    torch = ("torch==2.9.0", "torch_xla==2.9.0")
    _run(session, "xla", "python", "tests/frameworks/torch_xla_job.py", packages=("jax", *torch))


@nox.session
def frameworks(session: nox.Session) -> None:
    """Run the frameworks on JAX (Flax, Keras, NumPyro …) on every built-in device: NAME --record."""
    names = ("jax", "flax", "equinox", "optax", "keras", "numpyro", "orbax-checkpoint", "diffrax", "distrax")
    _run(session, "xla,iree", "python", "tests/frameworks/run_jobs.py", packages=names)


@nox.session
def ray(session: nox.Session) -> None:
    """Run the tests of clusters under Ray."""
    _run(session, "test,ray", "pytest", "-m", "ray")


@nox.session
def iree(session: nox.Session) -> None:
    """Run JAX's checks and the device API's tests with many programs on IREE."""
    _run(session, "test-full", "pytest", "-m", "iree")


@nox.session
def heavy(session: nox.Session) -> None:
    """Run the tests of more devices, values and processes than the full tests have."""
    _run(session, "test-full", "pytest", "-m", "heavy")


@nox.session
def versions(session: nox.Session) -> None:
    """Run the tests that depend on versions with others: "python3.11 jaxlib==0.9.* jax==0.9.*" --record."""
    _run(session, "test-full", "python", "tools/compare_versions.py")


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure which lines of Python the tests reach, in the processes that they start, too."""
    session.install("-e", ".[test]", "coverage>=7.10")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report", "--skip-covered", "--sort=cover")


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run tests and benchmarks on an NVIDIA GPU, and write one report."""
    session.run("tests/gpu/run.sh", *session.posargs, external=True)


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build the source distribution and wheels, and try each without a compiler."""
    session.run(".ci/wheels", external=True)
