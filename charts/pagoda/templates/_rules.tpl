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
    verbs: [create, patch]
{{- end -}}

{{/* Two operators that serve one namespace would undo one another's work for ever. Refuse what can be seen of that; a
dry run without a cluster sees nothing. */}}
{{- define "pagoda.refuseOverlap" -}}
{{- $served := splitList "\n" (include "pagoda.namespaces" .) -}}
{{- $found := list -}}
{{- if eq .Values.watch.scope "Cluster" -}}
{{- $found = concat (dig "items" list (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "")) (dig "items" list (lookup "rbac.authorization.k8s.io/v1" "RoleBinding" "" "")) -}}
{{- else -}}
{{- range $served -}}
{{- $found = concat $found (dig "items" list (lookup "rbac.authorization.k8s.io/v1" "RoleBinding" . "")) -}}
{{- end -}}
{{- end -}}
{{- $own := printf "%s/%s" .Release.Namespace .Release.Name -}}
{{- range $found -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- $owner := printf "%s/%s" (get $notes "meta.helm.sh/release-namespace") (get $notes "meta.helm.sh/release-name") -}}
{{- if and (eq (get $labels "pagoda-kv.io/rules") "pools") (ne $owner $own) -}}
{{- fail (printf "release %s already serves %s: two operators would undo one another's work. Set watch.scope=Namespaces and namespaces that nobody else serves, in one or both of them" $owner (ternary (printf "namespace %s" .metadata.namespace) "the whole cluster" (hasKey .metadata "namespace"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
