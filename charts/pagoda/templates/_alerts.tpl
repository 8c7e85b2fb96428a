{{/* The alert groups, each alert with the way to its runbook. Prometheus evaluates double braces in annotations: the command
must have none. */}}
{{- define "pagoda.alertGroups" -}}
{{- $root := . -}}
{{- $groups := get (.Files.Get "files/alerts.yaml" | fromYaml) "groups" -}}
{{- range $group := $groups -}}
{{- range $rule := $group.rules -}}
{{- if $root.Values.monitoring.alerts.runbookUrlPrefix -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s/%s.md" (trimSuffix "/" $root.Values.monitoring.alerts.runbookUrlPrefix) $rule.alert) -}}
{{- else -}}
{{- $_ := set $rule.annotations "runbook" (printf "kubectl get configmap --namespace %s %s-runbooks --output jsonpath='{.data.%s}'" $root.Release.Namespace (include "pagoda.fullname" $root) $rule.alert) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}
