package consumers

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// answer is a claim with its IPAddress, in the API version in which the consumer reads them.
type answer struct {
	claim, address *unstructured.Unstructured
	// IP, Bits and Gateway are the fields of the IPAddress as consumers parse them; Bits is 0 without a prefix.
	IP, Gateway string
	Bits        int
	// ready is the status of the current condition Ready, legacy that of v1beta1; empty without the condition.
	ready, legacy string
}

func newAnswer(claim, address *unstructured.Unstructured) (answer, error) {
	a := answer{claim: claim, address: address}
	a.IP, _, _ = unstructured.NestedString(address.Object, "spec", "address")
	a.Gateway, _, _ = unstructured.NestedString(address.Object, "spec", "gateway")
	bits, _, err := unstructured.NestedInt64(address.Object, "spec", "prefix")
	a.Bits = int(bits)
	if err != nil {
		return a, err
	}
	a.ready, a.legacy = readyOf(claim).Status, legacyOf(claim).Status
	return a, nil
}

// condition is a condition of either API version.
type condition struct{ Status, Reason, Message, Severity string }

// readyOf returns the condition Ready of a claim, in the form since v1beta2.
func readyOf(claim *unstructured.Unstructured) condition {
	if claim.GroupVersionKind().Version == v1beta1.Version {
		return conditionAt(claim, "status", "v1beta2", "conditions")
	}
	return conditionAt(claim, "status", "conditions")
}

// legacyOf returns the condition Ready of a claim, in the form that readers of v1beta1 expect.
func legacyOf(claim *unstructured.Unstructured) condition {
	if claim.GroupVersionKind().Version == v1beta1.Version {
		return conditionAt(claim, "status", "conditions")
	}
	return conditionAt(claim, "status", "deprecated", "v1beta1", "conditions")
}

func conditionAt(claim *unstructured.Unstructured, path ...string) condition {
	list, _, _ := unstructured.NestedSlice(claim.Object, path...)
	for _, item := range list {
		var c condition
		if fields, ok := item.(map[string]any); ok && fields["type"] == "Ready" {
			c.Status, _, _ = unstructured.NestedString(fields, "status")
			c.Reason, _, _ = unstructured.NestedString(fields, "reason")
			c.Message, _, _ = unstructured.NestedString(fields, "message")
			c.Severity, _, _ = unstructured.NestedString(fields, "severity")
			return c
		}
	}
	return condition{}
}

// complaints returns what would keep the consumer from using the addresses, all of one network interface.
func (c *consumer) complaints(answers []answer) []string {
	var bad []string
	complain := func(a answer, format string, args ...any) {
		bad = append(bad, a.address.GetName()+": "+fmt.Sprintf(format, args...))
	}
	gateways := map[bool]string{}
	seen := map[string]bool{}
	for _, a := range answers {
		if a.ready != "True" || a.legacy != "True" {
			complain(a, "Ready is %q, of v1beta1 %q, of a claim that has its address", a.ready, a.legacy)
		}
		prefix, err := netip.ParsePrefix(fmt.Sprintf("%s/%d", a.IP, a.Bits))
		if err != nil || a.Bits == 0 {
			complain(a, "%s/%d is no address of a network", a.IP, a.Bits)
			continue
		}
		if seen[a.IP] {
			complain(a, "%s is there twice", a.IP)
		}
		seen[a.IP] = true
		if a.Gateway == "" {
			if c.wantsGateway {
				complain(a, "no gateway")
			}
			continue
		}
		gateway, err := netip.ParseAddr(a.Gateway)
		is4 := prefix.Addr().Is4()
		if err != nil || gateway.Is4() != is4 {
			complain(a, "gateway %s is none of %s", a.Gateway, prefix)
		}
		if other := gateways[is4]; other != "" && other != a.Gateway {
			complain(a, "gateways %s and %s on one interface", other, a.Gateway)
		}
		gateways[is4] = a.Gateway
	}
	return bad
}
