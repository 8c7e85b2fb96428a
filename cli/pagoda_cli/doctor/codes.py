"""What the doctor can find: one code per kind of finding, stable for ever, with what it means and what to do.

docs/doctor.md is made from this table. A code is never given another meaning; a new kind of finding gets a new one.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """How bad it is; the exit status follows from the worst."""

    INFO = 0
    """Good to know; nothing is wrong."""
    WARNING = 1
    """Requests are served, but slower, or something was not looked at."""
    ERROR = 2
    """Something does not work."""


@dataclass(frozen=True)
class Code:
    """One kind of finding."""

    severity: Severity
    title: str
    meaning: str
    remedy: str


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

CODES: Mapping[str, Code] = {
    "PGD001": Code(_E, "the kind InferencePool is not installed",
        "The cluster has no CustomResourceDefinition inferencepools.pagoda-kv.io, so no pool can be made.",
        "Install the chart pagoda (with crds.install) or pagoda-crds."),
    "PGD002": Code(_E, "the version v1alpha1 of InferencePool is not served",
        "The definition is there, but the API server does not serve or does not store the version that this release "
        "speaks, or has not accepted the definition's names.",
        "Install the chart pagoda-crds of this release; what conditions of the definition say is quoted."),
    "PGD003": Code(_W, "the definition of InferencePool is not the one of this release",
        "Its schema is older, newer or was edited: fields that the operator knows may be refused, and others dropped.",
        "Install the chart pagoda-crds of the release that the operator is of "
        "(helm upgrade with --take-ownership --force-conflicts where somebody edited it)."),
    "PGD004": Code(_I, "another kind is called InferencePool too",
        "The Gateway API Inference Extension has a kind of the same name in another group. Both work side by side, but "
        "kubectl get inferencepools may show the other one.",
        "Write inferencepools.pagoda-kv.io, or the short name pgp."),
    "PGD010": Code(_E, "there is no operator",
        "No Deployment with the labels app.kubernetes.io/part-of=pagoda and app.kubernetes.io/component=operator was "
        "found, so nobody looks after pools.",
        "Install the chart pagoda."),
    "PGD011": Code(_E, "the operator does not run",
        "None of its pods is available. Pools that serve go on serving; nothing else changes.",
        "Look at the operator's pods; what stops them is quoted."),
    "PGD012": Code(_E, "no operator leads",
        "Nobody holds the Lease, or its holder has not renewed it in time, so nobody writes. A takeover takes less "
        "than 20 s; longer means that the operators cannot reach the API server or may not write the Lease.",
        "Look at the operator's log, and at PGD013."),
    "PGD013": Code(_E, "the operator lacks a right",
        "A role or binding of the chart is missing or was changed; what the operator does with the right fails.",
        "Install the chart again (helm upgrade); with rbac.create=false grant what is listed."),
    "PGD014": Code(_E, "no operator serves a pool's namespace",
        "Every operator is confined to other namespaces, so nobody looks after this pool.",
        "Add the namespace to watch.namespaces of a release, or set watch.scope=Cluster."),
    "PGD015": Code(_W, "two operators serve one namespace",
        "Two releases look after the same pools and undo one another's work.",
        "Give each release namespaces of its own (watch.scope=Namespaces), or remove one."),
    "PGD020": Code(_E, "a pool is not ready",
        "The operator says so; its reason and message are quoted.",
        "Do what the message asks for; findings about the pool's pods say more."),
    "PGD021": Code(_E, "a pool's status is not of its newest generation",
        "The operator has not looked at the pool since it was changed, for a minute or longer.",
        "See PGD010 to PGD015; else the operator's log says what fails."),
    "PGD022": Code(_E, "a Secret that a pool needs is missing",
        "Pods that mount it do not start.",
        "Create it; one that the operator makes comes back within half an hour, in two minutes while the pool is not "
        "ready, or when the operator restarts."),
    "PGD023": Code(_E, "a Secret lacks a key that a pool needs",
        "What reads the key does not work: tiers stay off, or callers are refused.",
        "Add the key; docs/manifest.md says what each Secret holds."),
    "PGD024": Code(_I, "Secrets may not be read",
        "You may not read Secrets here, so whether they are there and complete was not checked. A pod that misses one "
        "is found anyway (PGD043, PGD046).",
        "Nothing, or run the doctor as somebody who may get Secrets."),
    "PGD025": Code(_E, "a StorageClass is missing",
        "The disk tier's volumes name a class that the cluster does not have, so engine pods stay Pending.",
        "Create it, or take spec.cache.disk away and give it anew with another storageClassName, which cannot be "
        "changed in place; without the field the disk tier lives in the node's own storage."),
    "PGD026": Code(_E, "somebody else's object has the name of a pool's child",
        "The operator touches nothing that it does not own, so this part of the pool is not made.",
        "Remove or rename the object, or name the pool differently."),
    "PGD027": Code(_E, "a child of a pool is missing",
        "An object that the operator makes for the pool is not there.",
        "The pool's conditions and the operator's log say why; see PGD013."),
    "PGD028": Code(_E, "a pool's spec is refused",
        "The operator finds the spec wrong and leaves the children as they are.",
        "Change the fields that are named."),
    "PGD029": Code(_W, "a Secret to pull images with is missing in a pool's namespace",
        "Nodes pull the images of that namespace's pools without it, which a private registry refuses.",
        "Create it there, as for the operator (docs/install.md), and delete the pods that already wait for an image."),
    "PGD030": Code(_E, "no node has a resource that a pool asks for",
        "Engine pods ask for GPUs, and no node offers any: the device plugin is missing, or there are no such nodes. "
        "With a cluster autoscaler nodes may still come.",
        "Install the device plugin of your GPUs, or add nodes."),
    "PGD031": Code(_W, "nodes have fewer of a resource than a pool asks for",
        "Even if nothing else used them, not all engine pods would find their GPUs.",
        "Add nodes, or lower spec.replicas or the GPUs of each engine."),
    "PGD032": Code(_W, "an engine pod is larger than every node",
        "What the pod's containers ask for in memory fits on no node, even an empty one.",
        "Lower spec.engine.resources.limits.memory or spec.cache.ram.size, or add larger nodes."),
    "PGD040": Code(_E, "a pod finds no node",
        "The scheduler's own words are quoted.",
        "Free or add what it misses, or lower what the pool asks for."),
    "PGD041": Code(_E, "an image cannot be pulled",
        "The image's name, its registry or the credentials for it are wrong; the node's words are quoted.",
        "Correct the image (chart values images.*, or spec.engine.image), or name the pull secret in the chart value "
        "images.pullSecrets and put a Secret of that name into the pod's namespace. A pod keeps the names it was made "
        "with; one that was made before must be deleted."),
    "PGD042": Code(_E, "a container crashes again and again",
        "Its last end is quoted.",
        "kubectl logs POD -c CONTAINER --previous shows its last words."),
    "PGD043": Code(_E, "a container cannot be made",
        "The node cannot start it from its specification, most often for a missing Secret or ConfigMap; its words are "
        "quoted.",
        "Create what is missing."),
    "PGD044": Code(_E, "pods are refused",
        "The API server refuses to make them: a quota, pod security, an admission webhook. Its words are quoted.",
        "Allow what the namespace forbids; every pod of a pool satisfies the restricted pod security standard."),
    "PGD045": Code(_W, "a container was killed for memory",
        "It used more than its limit and was started again.",
        "For the engine raise spec.engine.resources.limits.memory; other limits are derived, so report it."),
    "PGD046": Code(_W, "a pod has been starting for long",
        "It has had a node for two minutes, and not all containers are started; the newest warning is quoted.",
        "Most often a volume cannot be mounted: a missing Secret, ConfigMap, claim or storage driver."),
    "PGD050": Code(_W, "pods of a pool share no cache: namespaces differ",
        "Their engines computed different cache namespaces (model, weights, dtype, codec, block size), so no block of "
        "one is a hit for another. During a rollout that changes one of these it is right and passes.",
        "Give all nodes of the pool one kind of accelerator (or set spec.engine.kvCache.dtype), and the same weights."),
    "PGD051": Code(_W, "pods of a pool share no cache: block sizes differ",
        "spec.engine.kvCache.blockTokens differs between running pods. During a rollout it is right and passes.",
        "Wait for the rollout, or see why it is stuck."),
    "PGD052": Code(_W, "pods of a pool speak different protocols",
        "Images of different releases run side by side. During a rollout it is right and passes.",
        "Use the images of one release for engine, sidecar and router (chart values images.*, spec.engine.image)."),
    "PGD053": Code(_W, "pods of a pool share no cache: codecs differ",
        "spec.cache.codec differs between running pods. During a rollout it is right and passes.",
        "Wait for the rollout, or see why it is stuck."),
    "PGD054": Code(_W, "a tier is off",
        "Requests are served, without what the tier would have saved; the sidecar's reason is quoted.",
        "Do what the reason asks for; the tier comes back by itself."),
    "PGD055": Code(_W, "a pool node cannot be reached",
        "Pods miss what this memcached node holds; their reason is quoted.",
        "See whether the node runs (its pod, or your own service), and PGD062."),
    "PGD056": Code(_W, "a pod did not tell how it is",
        "Its engine or sidecar did not answer the doctor through the API server's proxy; what was said instead is "
        "quoted. It may be down, or a NetworkPolicy keeps the API server out, which harms nobody.",
        "If routers and operator reach the pod (PGD060, PGD061) ignore it; else see the pod's log."),
    "PGD057": Code(_W, "a tier has not proven itself",
        "After its start an engine sends a block through each tier and back; this one failed and is tried again.",
        "Do what the reason asks for."),
    "PGD058": Code(_I, "not all pods were asked",
        "There was not enough time to ask every pod of every pool.",
        "Run the doctor for one namespace (--namespace)."),
    "PGD060": Code(_E, "a NetworkPolicy keeps routers from engines",
        "No request gets through where policies are enforced.",
        "Allow the ports 8000 and 8001 from the pool's router pods to its engine pods, in the policies named."),
    "PGD061": Code(_E, "a NetworkPolicy keeps the operator from engine pods",
        "Where policies are enforced the operator cannot tell whether engines work, and the pool never becomes ready.",
        "Allow the ports 8000 and 8001 from the operator's pods: in charts values networkPolicy.* for ours, or in the "
        "policies that are named."),
    "PGD062": Code(_W, "a NetworkPolicy keeps sidecars from memcached",
        "Where policies are enforced the shared pool is never hit.",
        "Allow port 11211 from the pool's engine pods to its memcached pods, in the policies that are named."),
    "PGD063": Code(_W, "a NetworkPolicy keeps pods from DNS",
        "Where policies are enforced these pods resolve no names: memcached nodes are not found.",
        "Allow port 53 over UDP and TCP, in the policies that are named."),
    "PGD064": Code(_I, "whether NetworkPolicies are enforced cannot be seen",
        "Policies are objects that the cluster's network plugin may ignore; no API says whether it does.",
        "If you rely on them, try a connection that they forbid."),
    "PGD070": Code(_W, "two disruption budgets select one pod",
        "Kubernetes refuses to evict a pod that several budgets select, so draining its node hangs.",
        "Remove the budget that the operator did not make."),
    "PGD071": Code(_W, "a disruption budget allows nothing although all is well",
        "Its pods can never be evicted, so draining their nodes hangs.",
        "Loosen it, or raise the replicas."),
    "PGD090": Code(_W, "a right is missing, so something was not checked",
        "You may not read what is named.",
        "Run the doctor as somebody who may, or ask for the right; findings above hold all the same."),
    "PGD091": Code(_W, "something could not be read, so it was not checked",
        "The API server did not answer, or not in time.",
        "Run the doctor again."),
    "PGD099": Code(_E, "the cluster cannot be read",
        "There is no connection, no kubeconfig, or no valid credentials; nothing was checked.",
        "Check --kubeconfig, --context and whether kubectl get namespaces answers."),
}  # fmt: skip
