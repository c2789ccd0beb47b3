package tidegate

import (
	"context"
	"net/http"
	"time"
)

// Count says which requests stay charged.
type Count int

const (
	// All of them.
	All Count = iota
	// Failures only: a status of 400 or more, or a handler that panics.
	Failures
	// Successes only: the others.
	Successes
)

// Limit is net/http middleware: each request asks first, and what is denied never reaches the handler, which finds the
// decision with FromContext.
type Limit struct {
	Client *Client
	// Ask makes the request to Tidegate of an HTTP request; nil lets it pass unasked.
	Ask func(*http.Request) *Request
	// Count is about requests of a limiter and a key: all are charged before, and what is not to be counted is given back
	// after, for which there is Hold, or 30 s if that is 0.
	Count Count
	Hold  time.Duration
	// LegacyHeaders adds X-RateLimit-* to the answers.
	LegacyHeaders bool
	// Refused answers when the server refuses the request itself; by default with a bare 500.
	Refused func(http.ResponseWriter, *http.Request, error)
}

type decisionKey struct{}

// FromContext is the decision that let a request pass; false if it was not asked about.
func FromContext(ctx context.Context) (Decision, bool) {
	decision, is := ctx.Value(decisionKey{}).(Decision)
	return decision, is
}

// Handler is next behind the limit.
func (l Limit) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := l.Ask(r)
		if request == nil {
			next.ServeHTTP(w, r)
			return
		}
		decision, err := l.decide(r.Context(), *request)
		if err != nil {
			l.refuse(w, r, err)
			return
		}
		decision.Headers(w.Header(), l.LegacyHeaders)
		if decision.Allowed {
			r = r.WithContext(context.WithValue(r.Context(), decisionKey{}, decision))
			l.serve(next, w, r, *request, decision.Reservation)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(decision.Status())
		_, _ = w.Write(decision.Body())
	})
}

func (l Limit) decide(ctx context.Context, request Request) (Decision, error) {
	if l.Count == All {
		return l.Client.Ask(ctx, request)
	}
	return l.Client.Reserve(ctx, request, l.Hold)
}

// serve ends the reservation, if there is one, when the handler has returned or panicked.
func (l Limit) serve(next http.Handler, w http.ResponseWriter, r *http.Request, request Request, reservation string) {
	if reservation == "" {
		next.ServeHTTP(w, r)
		return
	}
	status := &statusWriter{ResponseWriter: w}
	hasFailed := true
	defer func() {
		// Not the request's context: a visitor who has left must not keep it from being settled.
		if hasFailed == (l.Count == Failures) {
			if request.Cost == 0 {
				request.Cost = 1
			}
			_, _ = l.Client.Commit(context.Background(), reservation, request.Cost)
		} else {
			_, _ = l.Client.Cancel(context.Background(), reservation)
		}
	}()
	next.ServeHTTP(status, r)
	hasFailed = status.code >= http.StatusBadRequest
}

func (l Limit) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if l.Refused != nil {
		l.Refused(w, r, err)
		return
	}
	http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	code int
}

func (w *statusWriter) WriteHeader(code int) {
	if code >= http.StatusOK && w.code == 0 { // what comes before is not the answer
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *statusWriter) Write(body []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(body)
}

// Flush is for handlers that stream.
func (w *statusWriter) Flush() {
	if flusher, is := w.ResponseWriter.(http.Flusher); is {
		flusher.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
