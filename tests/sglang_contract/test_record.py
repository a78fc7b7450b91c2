"""The recorder, on a wheel that is made here: what is written out is recorded, what is computed is not guessed."""

from __future__ import annotations

from pathlib import Path

from tests.sglang_contract.contract import VERSIONS, Contract
from tests.sglang_contract.record import record

STRUCTS = """
class BaseReq(Struct):
    rid: Optional[str] = field(default=None, kw_only=True)
class GenerateReqInput(BaseReq):
    input_ids: Annotated[Optional[List[int]], check] = None
    names: List[str]
"""
SERVER = """
@app.get("/health")
@app.get("/health_generate")
async def health(): ...
@app.api_route("/generate", methods=["POST", "PUT"])
async def generate(): ...
@app.get(os.environ.get("ROUTE"))
async def other(): ...
async def model_info():
    return {"model_path": 1, "weight_version": 2}
"""
ARGUMENTS = """
CHOICES = ["a", "b"]
def add(parser):
    parser.add_argument("--model-path", "--model", type=str, required=True)
    parser.add_argument("--backend", type=str, choices=CHOICES)
    parser.add_argument("--quiet", action="store_true")
"""
FIELDS = """
class Schedule(Struct):
    page_size: A[Optional[int], "Tokens of a page."] = None
    tp_size: A[int, Arg(help="Ranks.", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    fast: A[bool, "Whether."] = False
    kind: A[Literal["x", "y"], Arg(help="Which.")] = "x"
    hidden: A[bool, Arg(no_cli=True)] = False
    derived: int = 3
"""


def test_facts_are_read_out_of_the_source(tmp_path: Path) -> None:
    files = {
        "sglang-9.9.dist-info/METADATA": "",
        "sglang/srt/managers/io_struct.py": STRUCTS,
        "sglang/srt/entrypoints/http_server.py": SERVER,
        "sglang/srt/entrypoints/openai/protocol.py": "class ErrorResponse(BaseModel):\n    code: int\n",
        "sglang/srt/sampling/sampling_params.py": "ALL = 1 << 30\nclass SamplingParams(Struct):\n    top_k: int = ALL\n",
        "sglang/srt/utils/weight_checker.py": "def handle(action):\n    if action == 'compare': ...\n",
        "sglang/srt/server_args.py": ARGUMENTS,
        "sglang/srt/arg_groups/fields/schedule.py": FIELDS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = record(tmp_path)
    assert facts["version"] == "9.9"
    assert facts["routes"] == {"/generate": ["POST", "PUT"], "/health": ["GET"], "/health_generate": ["GET"]}
    assert facts["requests"]["GenerateReqInput"] == {
        "rid": {"type": "Optional[str]", "default": None, "required": False},
        "input_ids": {"type": "Optional[List[int]]", "default": None, "required": False},
        "names": {"type": "List[str]", "default": None, "required": True},
    }
    assert facts["sampling_params"]["top_k"]["default"] == 1 << 30
    assert facts["checker_actions"] == ["compare"]
    assert facts["model_info"] == ["model_path", "weight_version"]
    flags = facts["flags"]
    assert flags.keys() == {
        *("--model-path", "--model", "--backend", "--quiet"),
        *("--page-size", "--tensor-parallel-size", "--tp-size", "--fast", "--kind"),
    }
    assert (flags["--backend"]["choices"], flags["--kind"]["choices"]) == (["a", "b"], ["x", "y"])
    assert (flags["--page-size"]["type"], flags["--fast"]["action"]) == ("int", "store_true")


def test_both_versions_are_recorded_with_what_the_client_relies_on() -> None:
    assert VERSIONS == ("0.5.10", "0.5.23")
    old, new = (Contract.load(version) for version in VERSIONS)
    assert (old.sessions, new.sessions, old.gated, new.gated) == (False, True, False, True)
    assert "checksum" in new.facts["checker_actions"]
    assert "checksum" not in old.facts["checker_actions"]
