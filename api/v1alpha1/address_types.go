package v1alpha1

import "maps"

// What addresses look like in the API. These are names for string, not types of their own: they are
// where the rules of the schema are kept.

// Prefix is a CIDR: all addresses that share its first bits.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be a CIDR: an IPv4 or IPv6 address, a slash and a prefix length, such as 10.40.0.0/21 or fd00:40::/64"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="has host bits set; write the first address of the network before the slash"
type Prefix = string

// OptionalPrefix is a Prefix, or empty where there is none: templates of Helm leave a field empty for which no value is set.
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="self.size() == 0 || isCIDR(self)",message="must be a CIDR: an IPv4 or IPv6 address, a slash and a prefix length, such as 10.40.0.0/21 or fd00:40::/64"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="has host bits set; write the first address of the network before the slash"
type OptionalPrefix = string

// OptionalAddress is an Address, or empty where there is none.
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="self.size() == 0 || isIP(self)",message="must be one IPv4 or IPv6 address, such as 10.40.0.1 or fd00:40::1"
type OptionalAddress = string

// Address is one address.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be one IPv4 or IPv6 address, such as 10.40.0.1 or fd00:40::1"
type Address = string

// PinnedAddress is an Address in canonical form: equal addresses are equal texts.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be one IPv4 or IPv6 address, such as 10.40.0.1 or fd00:40::1"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip.isCanonical(self)",message="must be in canonical form: lower case, and as short as possible, such as fd00:40::a"
type PinnedAddress = string

// PreAllocations are addresses by the name of the claim they are kept for.
// +kubebuilder:object:generate=false
type PreAllocations map[string]PinnedAddress

// DeepCopy is written by hand: controller-gen does not copy maps of an alias.
func (in PreAllocations) DeepCopy() PreAllocations { return maps.Clone(in) }

// Range is a CIDR, a range (first-last) or one address.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=79
// +kubebuilder:validation:XValidation:rule="isCIDR(self) || isIP(self) || (self.contains('-') && isIP(self.substring(0, self.indexOf('-'))) && isIP(self.substring(self.indexOf('-') + 1)))",message="must be a CIDR (10.40.0.0/28 or fd00::/64), a range first-last (10.40.0.10-10.40.0.20) or one address (10.40.0.5)"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="has host bits set; write the first address of the network before the slash"
// +kubebuilder:validation:XValidation:rule="!self.contains('-') || self.substring(0, self.indexOf('-')).contains(':') == self.substring(self.indexOf('-') + 1).contains(':')",message="both ends of a range must be of one family, IPv4 or IPv6"
// +kubebuilder:validation:XValidation:rule="!self.contains('-') || !isIP(self.substring(0, self.indexOf('-'))) || !isIP(self.substring(self.indexOf('-') + 1)) || self.contains(':') || [self.replace('-', '.').split('.').map(o, int(o))].all(n, ((n[0] * 256 + n[1]) * 256 + n[2]) * 256 + n[3] <= ((n[4] * 256 + n[5]) * 256 + n[6]) * 256 + n[7])",message="the end of the range is before its start; write the lower address first"
type Range = string
