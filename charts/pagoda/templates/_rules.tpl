{{/* What the operator may do, one role for each line of thought. There is no wildcard, no bind and no escalate: what it
grants to a pool's router (`router-grant`) it holds itself, as a rule of its own. */}}

{{- define "pagoda.rules" -}}
pools:
  - apiGroups: [pagoda-kv.io]
    resources: [inferencepools]
    verbs: [get, list, watch]
pool-status:
  - apiGroups: [pagoda-kv.io]
    resources: [inferencepools/status]
    verbs: [patch]
workloads:
  - apiGroups: [apps]
    resources: [deployments, statefulsets]
    verbs: [get, list, watch, create, patch, delete]
services:
  - apiGroups: [""]
    resources: [services, configmaps, serviceaccounts]
    verbs: [get, list, watch, create, patch, delete]
policies:
  - apiGroups: [policy]
    resources: [poddisruptionbudgets]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [networking.k8s.io]
    resources: [networkpolicies]
    verbs: [get, list, watch, create, patch, delete]
router-roles:
  - apiGroups: [rbac.authorization.k8s.io]
    resources: [roles, rolebindings]
    verbs: [get, list, watch, create, patch, delete]
router-grant:
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, list, watch]
pod-annotations:
  - apiGroups: [""]
    resources: [pods]
    verbs: [patch]
secrets:
  - apiGroups: [""]
    resources: [secrets]
    verbs: [create, delete]
events:
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create]
{{- end -}}

{{/* Bindings of other releases that let an operator serve, out of the list given: (dict "root" $ "in" LIST), one a line. */}}
{{- define "pagoda.servedByOthers" -}}
{{- $own := printf "%s/%s" .root.Release.Namespace .root.Release.Name -}}
{{- range .in -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- $owner := printf "%s/%s" (get $notes "meta.helm.sh/release-namespace") (get $notes "meta.helm.sh/release-name") -}}
{{- if and (eq (get (.metadata.labels | default dict) "pagoda-kv.io/rules") "pools") (ne $owner $own) }}
release {{ $owner }} serves {{ ternary (printf "namespace %s" (get .metadata "namespace")) "every namespace" (hasKey .metadata "namespace") }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Two operators that serve one namespace would undo one another's work for ever. Refuse what can be seen of that with
the rights that this installation needs anyway; a dry run without a cluster sees nothing. What people with rights in one
namespace may have made there is no reason to refuse a release for the cluster: the notes speak of it. */}}
{{- define "pagoda.refuseOverlap" -}}
{{- $found := list -}}
{{- if eq .Values.watch.scope "Cluster" -}}
{{- $found = dig "items" list (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "") -}}
{{- else -}}
{{- range splitList "\n" (include "pagoda.namespaces" .) -}}
{{- $found = concat $found (dig "items" list (lookup "rbac.authorization.k8s.io/v1" "RoleBinding" . "")) -}}
{{- end -}}
{{- end -}}
{{- with include "pagoda.servedByOthers" (dict "root" . "in" $found) | trim -}}
{{- fail (printf "%s already: two operators would undo one another's work. Set watch.scope=Namespaces and namespaces that nobody else serves, in one or both of the releases" .) -}}
{{- end -}}
{{- end -}}
