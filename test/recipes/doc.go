// Package recipes runs what the documentation tells users to give to other software, with the code of that software:
// the ClusterClass of docs/consumers.md with Cluster API's patches.
package recipes
