package cli

import "strconv"

// namespaceOrCount is a flag -n of which a number is a count: -n is kubectl's for the namespace, and nobody who asks
// what is free names one with a number. Both may be given, in any order.
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

// Set takes one of the two.
func (f *namespaceOrCount) Set(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		f.number = &n
		return nil
	}
	*f.namespace = text
	return nil
}

// settle has a number be the count, or the namespace after all where another flag says the count.
func (f *namespaceOrCount) settle(count *int64, counted bool) {
	switch {
	case f.number == nil:
	case !counted:
		*count = *f.number
	case *f.namespace == "":
		*f.namespace = strconv.FormatInt(*f.number, 10)
	}
}

// Type is what the help calls it.
func (f *namespaceOrCount) Type() string { return "string" }
