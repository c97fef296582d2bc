// Package recipes runs the configuration that the documentation gives users for other software, with the code of that
// software: the ClusterClass of docs/consumers.md with Cluster API's patches, the health check of docs/gitops.md with
// the Lua of Argo CD.
package recipes
