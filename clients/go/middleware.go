package tidegate

import "net/http"

// Limit is net/http middleware: each request asks first, and what is denied never reaches the handler.
type Limit struct {
	Client *Client
	// Ask makes the request to Tidegate of an HTTP request; nil lets it pass unasked.
	Ask func(*http.Request) *Request
	// LegacyHeaders adds X-RateLimit-* to the answers.
	LegacyHeaders bool
	// Refused answers when the server refuses the request itself; by default with a bare 500.
	Refused func(http.ResponseWriter, *http.Request, error)
}

// Handler is next behind the limit.
func (l Limit) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := l.Ask(r)
		if request == nil {
			next.ServeHTTP(w, r)
			return
		}
		decision, err := l.Client.Ask(r.Context(), *request)
		if err != nil {
			l.refuse(w, r, err)
			return
		}
		decision.Headers(w.Header(), l.LegacyHeaders)
		if decision.Allowed {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(decision.Status())
		_, _ = w.Write(decision.Body())
	})
}

func (l Limit) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if l.Refused != nil {
		l.Refused(w, r, err)
		return
	}
	http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
}
