package page

import "net/http"

// Handlers returns the handlers of the page by path: its files, of type Files, and its data.
func (p *Page) Handlers() map[string]http.Handler {
	api := http.NewServeMux()
	for name, answer := range map[string]func(*http.Request) (any, error){
		"pools": p.handlePools, "usage": p.handleUsage, "map": p.handleMap, "owners": p.handleOwners, "waiting": p.handleWaiting, "leases": p.handleLeases, "families": p.handleFamilies, "search": p.handleSearch,
	} {
		api.HandleFunc("GET "+APIPath+name, func(w http.ResponseWriter, r *http.Request) {
			reply, err := answer(r)
			writeReply(w, r, reply, err)
		})
	}
	return map[string]http.Handler{APIPath: withSecurityHeaders(api), PagePath: newFiles()}
}
