package oidc

// AwaitFetch waits for the end of a running fetch of keys.
func (v *Verifier) AwaitFetch() {
	v.keys.mu.Lock()
	f := v.keys.fetching
	v.keys.mu.Unlock()
	if f != nil {
		<-f.done
	}
}
