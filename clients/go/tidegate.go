// Package tidegate asks a Tidegate server: may this happen now?
//
// It asks and counts nothing itself. Connections are kept and used again, and no call takes longer than the deadline. A
// hit must not be charged twice: only what failed before anything was sent is tried again, which is connecting.
package tidegate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	defaultDeadline    = 250 * time.Millisecond
	retryPause         = 10 * time.Millisecond
	idleConnectionsMax = 64
	bodyBytesMax       = 4 << 20
)

// OnFailure says what holds when the server does not answer within the deadline.
type OnFailure int

const (
	// Allow lets everything pass: the limiter's failure is not the application's.
	Allow OnFailure = iota
	// Deny lets nothing pass.
	Deny
)

// Options of a client. The zero value is a good one.
type Options struct {
	// Token, for a server that asks for one; by default what TokenFile has, or else the variable TIDEGATE_TOKEN.
	Token     string
	TokenFile string
	// Deadline of a call, above 0, or 0 for 250 ms. A context that ends earlier ends the call earlier.
	Deadline  time.Duration
	OnFailure OnFailure
	// OnError is called whenever a decision is made without the server.
	OnError func(error)
	// TLS, for certificates of one's own.
	TLS *tls.Config
}

// Client asks a server. It is for many goroutines, and one is enough for a process.
type Client struct {
	server   string
	token    string
	deadline time.Duration
	failure  OnFailure
	onError  func(error)
	http     http.Client
}

// New makes a client of the server at an address such as http://127.0.0.1:7400; an empty one stands for the variable
// TIDEGATE_SERVER, or else that. It does not connect yet.
func New(server string, options Options) (*Client, error) {
	if server == "" {
		server = os.Getenv("TIDEGATE_SERVER")
	}
	if server == "" {
		server = "http://127.0.0.1:7400"
	}
	address, err := url.Parse(server)
	if err != nil || address.Host == "" || (address.Scheme != "http" && address.Scheme != "https") {
		return nil, fmt.Errorf("tidegate: server %q is no address such as http://127.0.0.1:7400", server)
	}
	token, err := readToken(options)
	if err != nil {
		return nil, err
	}
	if options.Deadline < 0 {
		return nil, fmt.Errorf("tidegate: Deadline %v is below 0; use a time above it, or 0 for %v", options.Deadline, defaultDeadline)
	}
	if options.Deadline == 0 {
		options.Deadline = defaultDeadline
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = idleConnectionsMax
	transport.DialContext = dialUntilTaken(options.Deadline)
	// The server is the application's own: HTTP_PROXY is about the world, and must not come between.
	transport.Proxy = nil
	transport.TLSClientConfig = options.TLS
	// HTTP/1.1 only: a connection that falls silent is closed with its call, and does not hold up the next ones.
	transport.ForceAttemptHTTP2 = false
	transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	return &Client{
		server:   strings.TrimSuffix(server, "/"),
		token:    token,
		deadline: options.Deadline,
		failure:  options.OnFailure,
		onError:  options.OnError,
		http:     http.Client{Transport: transport, CheckRedirect: keepRedirect},
	}, nil
}

// Hit asks whether this may happen now, and charges it if so.
func (c *Client) Hit(ctx context.Context, limiter, key string) (Decision, error) {
	return c.Ask(ctx, Request{Limiter: limiter, Key: key})
}

// Peek asks whether a hit would be allowed, and charges nothing.
func (c *Client) Peek(ctx context.Context, limiter, key string) (Decision, error) {
	return c.Ask(ctx, Request{Limiter: limiter, Key: key, Peek: true})
}

// Ask takes any request, also one by attributes. Its error is a *Refused or the context's: when the server does not
// answer, the decision is made by OnFailure, and says why in Err.
func (c *Client) Ask(ctx context.Context, request Request) (Decision, error) {
	return c.decide(ctx, "/v1/hit", request)
}

// Hits asks up to 1,000 requests in one round trip; each is decided by itself and answered in its place.
func (c *Client) Hits(ctx context.Context, requests []Request) ([]Answer, error) {
	var told struct{ Answers []Answer }
	if err := c.ask(ctx, batch{Requests: requests}, &told, "answers"); err != nil {
		decision, err := c.withoutServer(ctx, err)
		return repeated(Answer{Decision: decision}, len(requests)), err
	}
	return told.Answers, nil
}

// HitsTogether asks up to 32 requests that are charged together, if allowed, or not at all.
func (c *Client) HitsTogether(ctx context.Context, requests []Request) (Together, error) {
	var told Together
	if err := c.ask(ctx, batch{requests, true}, &told, "allowed"); err != nil {
		decision, err := c.withoutServer(ctx, err)
		return Together{decision.Allowed, repeated(decision, len(requests))}, err
	}
	return told, nil
}

func (c *Client) ask(ctx context.Context, body batch, told any, member string) error {
	reply, err := c.post(ctx, "/v1/hits", body)
	if err != nil {
		return err
	}
	return reply.read(told, member)
}

// withoutServer decides by OnFailure, unless the request itself is at fault or the caller has left.
func (c *Client) withoutServer(ctx context.Context, err error) (Decision, error) {
	var refused *Refused
	if errors.As(err, &refused) {
		return Decision{}, refused
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return Decision{}, ctx.Err()
	}
	c.tell(err)
	decision := Decision{Allowed: c.failure == Allow, Reason: "unreachable", Err: err}
	if !decision.Allowed {
		wait := int64(1000)
		decision.RetryAfterMS = &wait
	}
	return decision, nil
}

// tell calls the application's own callback. What it panics with is logged: it must not keep OnFailure from deciding.
func (c *Client) tell(err error) {
	defer func() {
		if fault := recover(); fault != nil {
			log.Printf("tidegate: OnError panicked with %v, told of: %v", fault, err)
		}
	}()
	if c.onError != nil {
		c.onError(err)
	}
}

type reply struct {
	status int
	fields http.Header
	body   []byte
}

func (c *Client) post(ctx context.Context, path string, body any) (*reply, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, path, bytes.NewReader(text))
}

func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.server+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	// A body that is read to its end leaves the connection to the next call.
	read, err := io.ReadAll(io.LimitReader(answer.Body, bodyBytesMax))
	return &reply{answer.StatusCode, answer.Header, read}, err
}

// read takes the JSON of a decision. Anything else is a refusal, if the request is at fault, or as good as no answer. 501 is a
// refusal, too: this store or this algorithm cannot do it. 408 is none: the request came too slowly.
func (r *reply) read(told any, member string) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(r.body, &members) == nil {
		if _, is := members[member]; is && (r.status == http.StatusOK || r.status == http.StatusTooManyRequests) {
			return json.Unmarshal(r.body, told)
		}
		isRefusal := r.status >= 400 && r.status < 500 && r.status != http.StatusRequestTimeout || r.status == http.StatusNotImplemented
		if _, is := members["code"]; is && isRefusal {
			refused := new(Refused)
			if err := json.Unmarshal(r.body, refused); err != nil {
				return err
			}
			return refused
		}
	}
	return fmt.Errorf("tidegate: the answer is no decision: %d %.200s", r.status, r.body)
}

// dialUntilTaken connects, and tries again until the deadline: nothing was sent yet, so nothing can be charged twice. The
// deadline is its own: net/http may go on dialing when the request that wanted a connection has ended.
func dialUntilTaken(deadline time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		for pause := retryPause; ; pause *= 2 {
			connection, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				return connection, nil
			}
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(pause):
			}
		}
	}
}

func keepRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func readToken(options Options) (string, error) {
	token := options.Token
	if token == "" && options.TokenFile != "" {
		text, err := os.ReadFile(options.TokenFile)
		if err != nil {
			return "", fmt.Errorf("tidegate: the token's file: %w", err)
		}
		token = string(text)
	}
	if token == "" {
		token = os.Getenv("TIDEGATE_TOKEN")
	}
	return strings.TrimSpace(token), nil
}

func repeated[T any](value T, times int) []T {
	all := make([]T, times)
	for place := range all {
		all[place] = value
	}
	return all
}
