package inspect

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// adviseRecreateObject extends the advice for an object that names the wrong pool by the owner of the object: only the
// controller that created a claim for a machine can create it again.
func (c ClaimantInfo) adviseRecreateObject(do string) string {
	owner := metav1.GetControllerOf(c.Object)
	if refs := c.Object.GetOwnerReferences(); owner == nil && len(refs) > 0 {
		owner = &refs[0]
	}
	if c.Kind != "IPAddressClaim" || owner == nil {
		return do
	}
	correct := "if that is part of a machine, correct the pool in the machine template"
	if owner.Kind == "Metal3Data" { // its template has another one
		correct = "name the right pool in a new Metal3DataTemplate, as networkData cannot be changed, and that one in a new Metal3MachineTemplate"
	}
	return fmt.Sprintf("%s. It belongs to %s %s: %s, and delete the Machine (docs/pools.md#claims-of-machines)", do, owner.Kind, owner.Name, correct)
}
