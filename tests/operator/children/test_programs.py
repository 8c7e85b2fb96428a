"""What a container is told is what its program takes, once the kubelet has put in the pod's name."""

import importlib
import re
from typing import Any

import pytest

from pagoda_engine import drain
from pagoda_operator.children.engine import FLUSH_SECONDS
from tests.operator.children.pools import POOLS, containers_of, templates_of

PROGRAMS = {"engine": "engine", "sidecar": "engine", "router": "router"}
POD = "the-pod"


def expanded(word: str, variables: dict[str, str]) -> str:
    """Do as the kubelet does: $$ is $, $(NAME) a variable's value or itself."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, word)


def arguments_of(container: dict[str, Any]) -> list[str]:
    variables = {
        variable["name"]: variable.get("value", POD) for variable in container["env"] if "secret" not in str(variable)
    }
    return [expanded(word, variables) for word in container["args"]]


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(("program", "part"), PROGRAMS.items())
def test_each_program_takes_its_containers_arguments(name: str, program: str, part: str) -> None:
    container = containers_of(templates_of(POOLS[name])[part])[program]
    assert container["command"] == ["python", "-m", f"pagoda_{program}"]
    parser = importlib.import_module(f"pagoda_{program}.arguments").build_parser()
    values = vars(parser.parse_args(arguments_of(container)))
    assert values["name"] == POD
    assert values["port"] == container["ports"][0]["containerPort"]
    mounts = {place["mountPath"] for place in container["volumeMounts"]}
    folders = {str(value) for key, value in values.items() if key.endswith("_dir") or key == "volume"} - {"None"}
    assert folders <= mounts, "every folder it is told of is mounted"


@pytest.mark.parametrize("name", POOLS)
def test_the_program_that_drains_takes_what_it_is_told_before_a_pod_ends(name: str) -> None:
    engine = containers_of(templates_of(POOLS[name])["engine"])["engine"]
    words = engine["lifecycle"]["preStop"]["exec"]["command"]
    told = drain.build_parser().parse_args(words[3:])
    assert (told.port, told.seconds) == (engine["ports"][0]["containerPort"], POOLS[name].drain_seconds)
    grace = templates_of(POOLS[name])["engine"]["spec"]["terminationGracePeriodSeconds"]
    assert told.seconds + drain.MARGIN_SECONDS + FLUSH_SECONDS <= grace, "the sidecar flushes after it"


def test_a_path_with_dollars_reaches_the_engine_as_it_was_written() -> None:
    pool = POOLS["all-tiers"]
    arguments = arguments_of(containers_of(templates_of(pool)["engine"])["engine"])
    assert arguments[arguments.index("--model-path") + 1] == "/models/$(HOME) $100"


def test_a_router_finds_the_pods_of_its_pool() -> None:
    pool = POOLS["ram"]
    templates = templates_of(pool)
    router = containers_of(templates["router"])["router"]["args"]
    selector = dict(part.split("=") for part in router[router.index("--pod-selector") + 1].split(","))
    assert selector.items() <= templates["engine"]["metadata"]["labels"].items()
    assert not selector.items() <= templates["router"]["metadata"]["labels"].items()
    assert router[router.index("--namespace") + 1] == "models"
    ports = {
        port["name"]: port["containerPort"]
        for container in containers_of(templates["engine"]).values()
        for port in container["ports"]
    }
    assert ports == {"http": 8000, "sidecar": 8001}, "the names by which routers know the ports"


def test_programs_may_write_below_their_home() -> None:
    engine = containers_of(templates_of(POOLS["least"])["engine"])["engine"]
    home = {variable["name"]: variable.get("value") for variable in engine["env"]}["HOME"]
    (place,) = [place for place in engine["volumeMounts"] if place["mountPath"] == home]
    assert "readOnly" not in place
