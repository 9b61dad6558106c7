{{/*
All that the operator may do with objects of a namespace, and why. It hands Roles on to Jobs and pods, and may hand on
only what it may do itself. What belongs to a TokTier or an admission is collected through its owner: the operator
deletes only what the spec or the status has no use for any more.
*/}}
{{- define "toktier-operator.rules" -}}
# Its own kinds: what is wanted is read, what was found is written.
- apiGroups: [toktier.dev]
  resources: [tokenizeradmissions, toktiers]
  verbs: [get, list, watch]
- apiGroups: [toktier.dev]
  resources: [tokenizeradmissions/status, toktiers/status]
  verbs: [patch]
# Owner references that hold up their owner's deletion, where the cluster checks who sets them (OpenShift).
- apiGroups: [toktier.dev]
  resources: [toktiers/finalizers]
  verbs: [update]
# Admission Jobs; their results and bundles; settings, control and reports of tiers.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
# The pods' own credential is made once and never read. `get` is for the metadata of Secrets that a spec names:
# whether they exist (webhooks), and whether a source was changed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
# What a TokTier, or an admission's Jobs, always have.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
# What it has if its spec says so.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
# How far a rollout is.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# Whether SGLang's Service has endpoints; pods watch those of their own.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}

{{/* Kopf's peering: all of a kind are listed and watched, the own one is written. */}}
{{- define "toktier-operator.peeringRules" -}}
- apiGroups: [kopf.dev]
  resources: [{{ .resource }}]
  verbs: [list, watch]
- apiGroups: [kopf.dev]
  resources: [{{ .resource }}]
  resourceNames: [{{ .name }}]
  verbs: [get, patch]
{{- end -}}
