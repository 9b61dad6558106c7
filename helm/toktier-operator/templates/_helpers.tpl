{{- define "toktier-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Of everything in the release's namespace. */}}
{{- define "toktier-operator.fullname" -}}
{{- $name := include "toktier-operator.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of what is cluster-wide, or lies in the namespaces of others: two releases of one name don't meet. */}}
{{- define "toktier-operator.globalName" -}}
{{- printf "%s-%s" .Release.Namespace (include "toktier-operator.fullname" .) -}}
{{- end -}}

{{- define "toktier-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "toktier-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "toktier-operator.selector" -}}
app.kubernetes.io/name: {{ include "toktier-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "toktier-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "toktier-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "toktier-operator.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "toktier-operator.peering" -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- default (include "toktier-operator.globalName" .) .Values.peering.name -}}
{{- end -}}
{{- end -}}

{{- define "toktier-operator.webhookSecret" -}}
{{- if eq .Values.webhooks.certificate.from "secret" -}}
{{- required "webhooks.certificate.from is `secret`: webhooks.certificate.secretName must name it" .Values.webhooks.certificate.secretName -}}
{{- else -}}
{{- printf "%s-webhooks" (include "toktier-operator.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/*
The certificate of the chart's own authority, made once a rendering: a YAML map of ca, crt, key (each in base64) and
renewAfter. What lies in the cluster is taken over until 30 days before it ends.
*/}}
{{- define "toktier-operator.ownCertificate" -}}
{{- if not (hasKey .Values.webhooks "_made") -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "toktier-operator.webhookSecret" .) | default dict -}}
{{- $data := get $found "data" | default dict -}}
{{- $notes := dig "metadata" "annotations" dict $found -}}
{{- $renew := get $notes "toktier.dev/renew-after" | default "0" | int64 -}}
{{- if and (hasKey $data "ca.crt") (hasKey $data "tls.crt") (hasKey $data "tls.key") (gt $renew (now | unixEpoch | int64)) -}}
{{- $_ := set .Values.webhooks "_made" (dict "ca" (get $data "ca.crt") "crt" (get $data "tls.crt") "key" (get $data "tls.key") "renewAfter" ($renew | toString)) -}}
{{- else -}}
{{- $service := printf "%s-webhooks.%s.svc" (include "toktier-operator.fullname" .) .Release.Namespace -}}
{{- $days := int .Values.webhooks.certificate.days -}}
{{- $ca := genCA (printf "%s-ca" (include "toktier-operator.fullname" .)) $days -}}
{{- $signed := genSignedCert $service nil (list $service (printf "%s.cluster.local" $service)) $days $ca -}}
{{- $after := add (now | unixEpoch | int64) (mul 86400 (sub $days 30)) -}}
{{- $_ := set .Values.webhooks "_made" (dict "ca" ($ca.Cert | b64enc) "crt" ($signed.Cert | b64enc) "key" ($signed.Key | b64enc) "renewAfter" ($after | toString)) -}}
{{- end -}}
{{- end -}}
{{- .Values.webhooks._made | toYaml -}}
{{- end -}}

{{/* Base64 of the authority that the API server is to trust; empty where cert-manager fills it in. */}}
{{- define "toktier-operator.caBundle" -}}
{{- $from := .Values.webhooks.certificate.from -}}
{{- if eq $from "chart" -}}
{{- (include "toktier-operator.ownCertificate" . | fromYaml).ca -}}
{{- else if eq $from "secret" -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "toktier-operator.webhookSecret" .) | default dict -}}
{{- $ca := dig "data" "ca.crt" "" $found -}}
{{- default $ca (.Values.webhooks.certificate.caBundle | default "") -}}
{{- end -}}
{{- end -}}

{{- define "toktier-operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "toktier-operator.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}
