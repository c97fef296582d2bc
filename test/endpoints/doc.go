// Package endpoints runs Cluster API's core manager, with ClusterClasses of CAPV, CAPM3 and CAPMOX as in
// docs/endpoints.md, against managers that set the endpoints of their Clusters. The CRDs are those of the providers;
// their controllers do not run, and the tests mark infrastructure as provisioned instead.
package endpoints
