"""The operator's command line."""

import pytest

from pagoda_operator.arguments import parse_arguments
from pagoda_operator.children import Images, PolicyPeers

IMAGES = ("--engine-image=e:1", "--sidecar-image=s:1", "--router-image=r:1", "--memcached-image=m:1")
NEEDED = ("--lease-namespace=system", *IMAGES)


def test_what_is_not_said_has_a_default() -> None:
    settings = parse_arguments(NEEDED)
    assert settings.namespaces == ()
    assert (settings.host, settings.port) == ("0.0.0.0", 8080)
    assert settings.lease_name == "pagoda-operator"
    assert settings.name
    assert settings.images == Images("e:1", "s:1", "r:1", "m:1")
    assert settings.peers == PolicyPeers({}, {})


def test_namespaces_labels_ports_and_pull_secrets_may_be_repeated() -> None:
    settings = parse_arguments(
        (
            *NEEDED, "--namespace=a", "--namespace=b", "--namespace=a", "--metrics-namespace=team=observers",
            "--metrics-namespace=x=y=z", "--operator-namespace=kubernetes.io/metadata.name=system",
            "--api-server-port=443", "--api-server-port=8443", "--image-pull-secret=registry",
            "--image-pull-secret=team.mirror", "--image-pull-secret=registry",
        )
    )  # fmt: skip
    assert settings.images.pull_secrets == ("registry", "team.mirror")
    assert settings.namespaces == ("a", "b")
    assert settings.peers == PolicyPeers(
        operator_namespace={"kubernetes.io/metadata.name": "system"},
        metrics_namespace={"team": "observers", "x": "y=z"},
        api_server_ports=(443, 8443),
    )


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--metrics-namespace=team", "--metrics-namespace: expected LABEL=VALUE, got 'team'"),
        ("--api-server-port=0", "--api-server-port: expected a whole number from 1 to 65535, got '0'"),
        (
            "--image-pull-secret=Registry",
            '--image-pull-secret: the name is the string "Registry"; give a name of lower-',
        ),
        ("--image-pull-secret=", "--image-pull-secret: the name is an empty string"),
        ("--port=x", "--port"),
        ("--namespac=a", "unrecognized arguments"),
        ("--lease-name=", "--lease-name: expected a text that is not empty"),
    ],
)
def test_a_wrong_flag_is_named(flag: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_arguments((*NEEDED, flag))
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("missing", NEEDED)
def test_what_cannot_be_guessed_must_be_said(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([flag for flag in NEEDED if flag != missing])
    assert missing.partition("=")[0] in capsys.readouterr().err
