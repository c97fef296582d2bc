package cli

import "strconv"

// namespaceOrCount is the value of a flag -n that accepts a namespace or a count: for kubectl, -n is the namespace, and
// a number is no plausible one in a query for free addresses. Both may be given, in any order.
type namespaceOrCount struct {
	namespace *string
	number    *int64
}

// String returns the namespace.
func (f *namespaceOrCount) String() string {
	if f.namespace == nil {
		return ""
	}
	return *f.namespace
}

// Set stores a number as the count, and any other text as the namespace.
func (f *namespaceOrCount) Set(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		f.number = &n
		return nil
	}
	*f.namespace = text
	return nil
}

// resolveNumber writes a number that was given with -n to count. Where counted reports that another flag sets the
// count, the number is the namespace, if no namespace was given.
func (f *namespaceOrCount) resolveNumber(count *int64, counted bool) {
	switch {
	case f.number == nil:
	case !counted:
		*count = *f.number
	case *f.namespace == "":
		*f.namespace = strconv.FormatInt(*f.number, 10)
	}
}

// Type returns the name of the value's type for the help.
func (f *namespaceOrCount) Type() string { return "string" }
