package faults

import (
	"fmt"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ListObjects returns the objects of the type O in all namespaces, ordered by namespace and name. Callers must not
// change them.
func ListObjects[O client.Object](s *Server) []O {
	kind, known := kindByType[reflect.TypeFor[O]()]
	if !known {
		panic(fmt.Sprintf("objects of type %v are not known here", reflect.TypeFor[O]()))
	}
	all := s.List(kind)
	out := make([]O, len(all))
	for i, o := range all {
		out[i] = toType[O](o)
	}
	return out
}

// EditObject changes an object of the type O at once, as a user outside of the schedule.
func EditObject[O client.Object](s *Server, ref Ref, change func(O)) error {
	return s.EditObject(ref, func(o client.Object) { change(toType[O](o)) })
}

// EditStatus changes the status of an object of the type O at once, as a user outside of the schedule.
func EditStatus[O client.Object](s *Server, ref Ref, change func(O)) error {
	return s.EditStatus(ref, func(o client.Object) { change(toType[O](o)) })
}

func toType[O client.Object](o client.Object) O {
	typed, ok := o.(O)
	if !ok {
		panic(fmt.Sprintf("%T is not of type %v", o, reflect.TypeFor[O]()))
	}
	return typed
}
