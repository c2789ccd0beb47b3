package tidegate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// Request is one limiter by name and key, or every limiter of a domain that the attributes match, charged together.
type Request struct {
	Limiter    string            `json:"limiter,omitempty"`
	Key        string            `json:"key,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Domain     string            `json:"domain,omitempty"`
	// Cost is how much; 0 stands for 1. To look only, set Peek.
	Cost uint32 `json:"cost,omitempty"`
	Peek bool   `json:"peek,omitempty"`
}

type batch struct {
	Requests []Request `json:"requests"`
	Together bool      `json:"together"`
}

// Decision is the server's answer, or one made by OnFailure when there was none; then Err says why.
type Decision struct {
	Allowed      bool    `json:"allowed"`
	Reason       string  `json:"reason"`
	Limiter      *string `json:"limiter"`
	Limit        *int64  `json:"limit"`
	Remaining    *int64  `json:"remaining"`
	RetryAfterMS *int64  `json:"retry_after_ms"`
	ResetAfterMS *int64  `json:"reset_after_ms"`
	// Degraded says how the server decided while its store did not answer: local, allow or deny.
	Degraded string `json:"degraded"`
	// Fields are RateLimit, RateLimit-Policy and Retry-After as the server sent them.
	Fields http.Header `json:"-"`
	Err    error       `json:"-"`
	// Reservation, of a Reserve, names it for Commit and Cancel; empty where there is nothing to give back.
	Reservation string `json:"reservation"`

	problem []byte
}

// Answer is that of one request in a batch: a decision, or what the server refuses about this request.
type Answer struct {
	Decision
	Refused *Refused
}

// UnmarshalJSON takes what has no member "allowed" for a problem.
func (a *Answer) UnmarshalJSON(text []byte) error {
	var kind struct{ Allowed *bool }
	if err := json.Unmarshal(text, &kind); err != nil {
		return err
	}
	if kind.Allowed == nil {
		a.Refused = new(Refused)
		return json.Unmarshal(text, a.Refused)
	}
	return json.Unmarshal(text, &a.Decision)
}

// Together is the answer to several requests that were charged together, if allowed, or not at all.
type Together struct {
	Allowed bool
	Answers []Decision
}

// Refused is an error of the request itself: an unknown limiter, a key that is too long, a token that may not. It is never
// taken for a failure of the server: otherwise a visitor with too long a name would never be limited.
type Refused struct {
	Status int
	Code   string
	Detail string
}

func (r *Refused) Error() string {
	return fmt.Sprintf("tidegate: %d %s: %s", r.Status, r.Code, r.Detail)
}

// Status is the HTTP status of a denial: 429, or 503 when it was made without the server.
func (d Decision) Status() int {
	if d.Err != nil {
		return http.StatusServiceUnavailable
	}
	return http.StatusTooManyRequests
}

// Headers sets the header fields for the application's own answer; legacy adds X-RateLimit-*.
func (d Decision) Headers(fields http.Header, legacy bool) {
	for name, values := range d.Fields {
		fields[name] = values
	}
	if !d.Allowed && d.RetryAfterMS != nil {
		fields.Set("Retry-After", seconds(*d.RetryAfterMS))
	}
	wait := d.ResetAfterMS
	if !d.Allowed {
		wait = d.RetryAfterMS
	}
	if legacy && d.Limit != nil && d.Remaining != nil {
		fields.Set("X-RateLimit-Limit", strconv.FormatInt(*d.Limit, 10))
		fields.Set("X-RateLimit-Remaining", strconv.FormatInt(*d.Remaining, 10))
		if wait != nil {
			fields.Set("X-RateLimit-Reset", seconds(*wait))
		}
	}
}

// Body is the body of a denial, as application/problem+json.
func (d Decision) Body() []byte {
	if d.problem != nil {
		return d.problem
	}
	kind, title := "quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"
	if d.Err != nil {
		kind, title = "temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"
	}
	const text = `{"type":"https://iana.org/assignments/http-problem-types#%s","title":"%s","status":%d}`
	return []byte(fmt.Sprintf(text, kind, title, d.Status()))
}

func passedOn(fields http.Header) http.Header {
	kept := http.Header{}
	for _, name := range []string{"Ratelimit-Policy", "Ratelimit", "Retry-After"} {
		if values, is := fields[name]; is {
			kept[name] = values
		}
	}
	return kept
}

// seconds rounds up: never tell a client to come too early.
func seconds(ms int64) string {
	return strconv.FormatInt((ms+999)/1000, 10)
}
