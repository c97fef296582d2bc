{{- define "gvList" -}}
# Every field

Generated from [api/v1alpha1](../api/v1alpha1) by `make generate`; `kubectl explain networkpool.spec` says the same. What the fields are for is in
[pools.md](pools.md), [allocations.md](allocations.md), [providers.md](providers.md) and [elastic.md](elastic.md).

{{ range . }}{{ template "group" . }}{{ end }}
{{- end -}}

{{- /* The kinds come first, then what they are made of. */ -}}
{{- define "group" -}}
| Kinds of `{{ .GroupVersionString }}` | |
|---|---|
{{ $group := . -}}
{{ range .SortedKinds }}{{ with $group.TypeForKind . -}}
| [{{ .Name }}](#{{ .Name | lower }}) | {{ .Doc | trim | markdownRenderFieldDoc }} |
{{ end }}{{ end }}
{{ range .SortedKinds }}{{ template "type" ($group.TypeForKind .) }}{{ end -}}
{{ range .SortedTypes }}{{ if not .GVK }}{{ template "type" . }}{{ end }}{{ end -}}
{{- end -}}

{{- define "type" -}}
{{- if markdownShouldRenderType . -}}
## {{ .Name }}

{{ .Doc }}
{{ if or .IsAlias .References }}
{{ if .IsAlias }}A {{ with .UnderlyingType.ValueType }}map of names to {{ template "named" . }}{{ else }}{{ markdownRenderType .UnderlyingType }}{{ end }}{{ range .Validation }}; {{ markdownRenderFieldDoc . }}{{ end }}.{{ end -}}
{{ if and .IsAlias .References }} {{ end -}}
{{ if .References }}In {{ range $i, $in := .SortedReferences }}{{ if $i }}, {{ end }}{{ markdownRenderTypeLink $in }}{{ end }}.{{ end }}
{{ end -}}
{{ if .Members }}
| Field | Type | | Default | Rules |
|---|---|---|---|---|
{{ range .Members -}}
| `{{ .Name }}` | {{ template "named" .Type }} | {{ if eq .Name "metadata" }}As of every object.{{ else }}{{ markdownRenderFieldDoc .Doc }}{{ end }} | {{ markdownRenderDefault .Default }} | {{ template "rules" . }} |
{{ end -}}
{{ end -}}
{{ if .EnumValues }}
| Value | |
|---|---|
{{ range .EnumValues -}}
| `{{ .Name }}` | {{ .Doc | trim | markdownRenderFieldDoc }} |
{{ end -}}
{{ end }}
{{ end -}}
{{- end -}}

{{- /* Names for string have no section of their own to link to. */ -}}
{{- define "named" -}}
{{- $all := "" -}}{{- $one := . -}}
{{- if and (not .Name) .UnderlyingType }}{{ $all = " array" }}{{ $one = .UnderlyingType }}{{ end -}}
{{- if has $one.Name (list "Address" "OptionalAddress" "OptionalPrefix" "PinnedAddress" "Prefix" "Range") }}{{ $one.Name | trimPrefix "Optional" | lower }}{{ $all }}{{ else }}{{ markdownRenderType . }}{{ end -}}
{{- end -}}

{{- /* What is neither optional nor has a default must be there. */ -}}
{{- define "rules" -}}
{{- $required := not (or .Default (eq .Name "metadata") (hasSuffix "Spec" .Type.Name) (hasSuffix "Status" .Type.Name)) -}}
{{- $rules := list -}}
{{- range .Validation -}}
{{- if hasPrefix "Optional" . }}{{ $required = false }}{{ else }}{{ $rules = append $rules (markdownRenderFieldDoc .) }}{{ end -}}
{{- end -}}
{{- if $required }}{{ $rules = prepend $rules "required" }}{{ end -}}
{{- join "; " $rules -}}
{{- end -}}
