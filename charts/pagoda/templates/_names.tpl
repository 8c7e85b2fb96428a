{{/* Names and labels. Objects of the cluster, and those in namespaces that releases share, carry the release's namespace
too, so that releases of one name live side by side. */}}

{{- define "pagoda.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: the longest suffix of ours still makes a label value. */}}
{{- define "pagoda.fullname" -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $name := include "pagoda.name" . -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- if gt (len $full) 40 -}}
{{- /* A cut name says by its hash what was cut, so that two long names stay two. */ -}}
{{- $full = printf "%s-%s" ($full | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "pagoda.selector" -}}
app.kubernetes.io/name: {{ include "pagoda.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "pagoda.labels" -}}
app.kubernetes.io/name: {{ include "pagoda.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: pagoda
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pagoda.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "pagoda.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is required where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* A pool's name: at most 40 characters that begin with a letter. */}}
{{- define "pagoda.testPool" -}}
{{- $name := printf "test-%s" (include "pagoda.fullname" .) -}}
{{- if gt (len $name) 40 -}}
{{- $name = printf "%s-%s" ($name | trunc 31 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The namespaces that are served, one a line; none with scope Cluster. */}}
{{- define "pagoda.namespaces" -}}
{{- if eq .Values.watch.scope "Namespaces" -}}
{{- join "\n" (.Values.watch.namespaces | default (list .Release.Namespace) | uniq | sortAlpha) -}}
{{- end -}}
{{- end -}}

{{- define "pagoda.testNamespace" -}}
{{- $served := splitList "\n" (include "pagoda.namespaces" .) -}}
{{- .Values.test.namespace | default (first $served) | default .Release.Namespace -}}
{{- end -}}

{{/* The reference of an image: (dict "root" $ "part" "engine"). */}}
{{- define "pagoda.image" -}}
{{- $image := index .root.Values.images .part -}}
{{- $unset := printf "images.registry is not set: build Pagoda's images and push them to a registry (images/README.md), then say which, as in --set images.registry=registry.example.com/pagoda; it is needed for images.%s" .part -}}
{{- $registry := $image.registry | default .root.Values.images.registry | required $unset -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- $place := printf "%s/%s" $registry $image.repository -}}
{{- ternary (printf "%s@%s" $place $image.digest) (printf "%s:%s" $place $tag) (ne $image.digest "") -}}
{{- end -}}
