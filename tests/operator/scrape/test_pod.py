"""What of a pod's manifest the operator keeps."""

import copy

import pytest

from pagoda_operator.scrape.pod import read_pod
from tests.operator.scrape.pods import engine_pod


def test_a_running_pod_is_known_by_its_containers_and_address() -> None:
    pod = read_pod(engine_pod(address="10.0.0.7"))
    assert pod is not None
    assert (pod.key, pod.address, pod.container_id, pod.sidecar_id) == (
        ("shop", "chat"), "10.0.0.7", "containerd://e1", "containerd://s1",
    )  # fmt: skip
    assert pod.is_ready
    assert pod.can_answer


def test_a_container_that_waits_to_be_started_again_has_no_id() -> None:
    pod = read_pod(engine_pod(container=None))
    assert pod is not None
    assert pod.container_id is None
    assert pod.can_answer  # its sidecar does


def test_a_pod_that_is_going_is_asked_nothing() -> None:
    pod = read_pod(engine_pod(deleted=True))
    assert pod is not None
    assert not pod.can_answer


@pytest.mark.parametrize("missing", ["pool", "part", "owner", "foreign owner"])
def test_a_pod_that_no_pool_of_ours_made_is_none_of_ours(missing: str) -> None:
    manifest = engine_pod()
    metadata = manifest["metadata"]
    match missing:
        case "owner":
            del metadata["ownerReferences"]
        case "foreign owner":
            metadata["ownerReferences"][0]["name"] = "somebody-engine-6f"
        case label:
            del metadata["labels"][f"pagoda-kv.io/{label}"]
    assert read_pod(manifest) is None


def test_a_pod_that_has_just_been_made_is_read() -> None:
    manifest = engine_pod()
    del manifest["status"], manifest["metadata"]["annotations"]
    pod = read_pod(manifest)
    assert pod is not None
    assert not pod.can_answer
    assert pod.written == {}


def test_annotations_alone_do_not_change_the_fingerprint_and_everything_else_does() -> None:
    manifest = engine_pod()
    annotated = copy.deepcopy(manifest)
    annotated["metadata"] |= {"annotations": {"any": "thing"}, "resourceVersion": "2", "managedFields": [{}]}
    before, after = read_pod(manifest), read_pod(annotated)
    assert before is not None
    assert after is not None
    assert before.fingerprint == after.fingerprint
    for changed in (engine_pod(ready=False), engine_pod(deleted=True), engine_pod(container="containerd://e2")):
        pod = read_pod(changed)
        assert pod is not None
        assert pod.fingerprint != before.fingerprint
