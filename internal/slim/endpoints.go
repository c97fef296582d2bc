package slim

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// TrimEndpointSlice keeps the Service of an EndpointSlice, and one ready endpoint, if there is one.
func TrimEndpointSlice(obj any) (any, error) {
	e, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return obj, nil
	}
	out := &discoveryv1.EndpointSlice{TypeMeta: e.TypeMeta}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = e.Name, e.Namespace, e.UID, e.ResourceVersion
	out.Labels = selectKeys(e.Labels, discoveryv1.LabelServiceName)
	for i := range e.Endpoints {
		if ptr.Deref(e.Endpoints[i].Conditions.Ready, true) {
			out.Endpoints = []discoveryv1.Endpoint{{}}
			break
		}
	}
	return out, nil
}
