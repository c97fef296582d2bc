package nodeipam

// Claim has the site taken over once, as if a Node waited: the caller has something to do that only one manager should.
// Who loses the site meanwhile does not claim it again for that: two managers that want different things would take turns.
func (s *Site) Claim() {
	m := s.lock()
	defer m.Unlock()
	m.claimed = true
}

// Holds reports whether this manager is the holder, as far as it knows.
func (s *Site) Holds() bool {
	m := s.lock()
	defer m.Unlock()
	return m.holder && !m.suspect
}
