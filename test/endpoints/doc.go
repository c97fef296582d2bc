// Package endpoints runs Cluster API's core manager, with ClusterClasses of CAPV, CAPM3 and CAPMOX as docs/endpoints.md has
// them, against managers that give their Clusters endpoints. The CRDs are those of the providers; their controllers do not
// run, and a test says in their place that an infrastructure is there.
package endpoints
