package tidegate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var background = context.Background()

func hit(t *testing.T, client *Client, request Request) Decision {
	t.Helper()
	decision, err := client.Ask(background, request)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

func hundred(key string) Request { return Request{Limiter: "hundred", Key: key} }

func TestHitsAreChargedUntilTheLimit(t *testing.T) {
	client := newServer(t).client(Options{Deadline: long})
	if peeked, err := client.Peek(background, "api", "u1"); err != nil || *peeked.Remaining != 3 {
		t.Fatal(peeked, err)
	}
	if first, err := client.Hit(background, "api", "u1"); err != nil || *first.Remaining != 2 || *first.Limiter != "api" {
		t.Fatal(first, err)
	}
	fields := http.Header{}
	hit(t, client, Request{Limiter: "api", Key: "u1", Cost: 2}).Headers(fields, true)
	for name, want := range map[string]string{"RateLimit-Policy": `"api";q=3;w=3600`, "X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "0"} {
		if fields.Get(name) != want {
			t.Errorf("%s is %q", name, fields.Get(name))
		}
	}
	denied := hit(t, client, Request{Limiter: "api", Key: "u1"})
	if denied.Allowed || denied.Reason != "limited" || denied.Status() != 429 || *denied.RetryAfterMS < 1_000_000 {
		t.Errorf("%+v", denied)
	}
	if !strings.Contains(string(denied.Body()), `"violated-policies":["api"]`) {
		t.Errorf("%s", denied.Body())
	}
}

func TestAttributesAreChargedTogether(t *testing.T) {
	client := newServer(t).client(Options{Deadline: long})
	var allowed []bool
	for _, user := range []string{"a", "a", "a", "b", "c"} {
		attributes := map[string]string{"user": user, "ip": "192.0.2.1"}
		allowed = append(allowed, hit(t, client, Request{Domain: "login", Attributes: attributes}).Allowed)
	}
	if !reflect.DeepEqual(allowed, []bool{true, true, false, true, false}) {
		t.Error(allowed)
	}
}

func TestBatches(t *testing.T) {
	client := newServer(t).client(Options{Deadline: long})
	answers, err := client.Hits(background, []Request{hundred("b"), {Limiter: "unknown", Key: "b"}, {Limiter: "api", Key: "b", Cost: 9}})
	if err != nil || *answers[0].Remaining != 99 || answers[1].Refused.Code != "unknown_limiter" || answers[2].Allowed {
		t.Fatalf("%+v %v", answers, err)
	}
	both := []Request{{Limiter: "api", Key: "t", Cost: 2}, hundred("t")}
	for _, allowed := range []bool{true, false} {
		together, err := client.HitsTogether(background, both)
		if err != nil || together.Allowed != allowed || len(together.Answers) != 2 {
			t.Errorf("%+v %v", together, err)
		}
	}
	if left := hit(t, client, hundred("t")); *left.Remaining != 98 {
		t.Errorf("the second charged something: %+v", left)
	}
}

func TestWhatTheServerRefusesIsNeverAllowed(t *testing.T) {
	client := newServer(t).client(Options{Deadline: long})
	for _, request := range []Request{{Limiter: "unknown", Key: "u1"}, {Limiter: "api", Key: strings.Repeat("k", 513)}, {Limiter: "api"}} {
		decision, err := client.Ask(background, request)
		var refused *Refused
		if !errors.As(err, &refused) || decision.Allowed {
			t.Errorf("%+v: %+v %v", request, decision, err)
		}
	}
}

func TestManyAtOnceOverConnectionsThatAreUsedAgain(t *testing.T) {
	server := newServer(t)
	client := server.client(Options{Deadline: long})
	var allowed int32
	inParallel(8, func() {
		for number := 0; number < 20; number++ {
			if decision, err := client.Hit(background, "hundred", "many"); err == nil && decision.Allowed {
				atomic.AddInt32(&allowed, 1)
			}
		}
	})
	if allowed != 100 {
		t.Errorf("%d of 160 were allowed", allowed)
	}
	before := server.opened()
	for number := 0; number < 20; number++ {
		hit(t, client, hundred("again"))
	}
	if opened := server.opened() - before; opened > 1 {
		t.Errorf("20 hits opened %d connections", opened)
	}
}

func TestTokens(t *testing.T) {
	server := newServer(t, withTokens)
	t.Setenv("TIDEGATE_TOKEN", server.token)
	for _, options := range []Options{{Token: server.token}, {TokenFile: server.path("token")}, {}} {
		options.Deadline = long
		hit(t, server.client(options), hundred("u1"))
	}
	_, err := server.client(Options{Token: "tg_wrong", Deadline: long}).Hit(background, "hundred", "u1")
	var refused *Refused
	if !errors.As(err, &refused) || refused.Status != 401 {
		t.Error(err)
	}
	if _, err := New(server.url, Options{TokenFile: server.path("none")}); err == nil {
		t.Error("there is no such file")
	}
	if _, err := New("gate.example", Options{}); err == nil {
		t.Error("that is no address")
	}
}

func TestHTTPS(t *testing.T) {
	server := newServer(t, withTLS)
	certificate, err := os.ReadFile(server.path("cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	hit(t, server.client(Options{Deadline: long, TLS: &tls.Config{RootCAs: roots}}), hundred("u1"))
	if told := hit(t, server.client(Options{Deadline: long, OnFailure: Deny}), hundred("u1")); told.Allowed {
		t.Error("nobody vouches for it")
	}
}

func TestKilledAndRestarted(t *testing.T) {
	server := newServer(t)
	var errorsSeen int32
	open := server.client(Options{Deadline: short, OnError: func(error) { atomic.AddInt32(&errorsSeen, 1) }})
	closed := server.client(Options{Deadline: short, OnFailure: Deny})
	// What the machine needs to begin with is not the server's time to answer.
	hit(t, open, hundred("k"))
	hit(t, closed, hundred("k"))
	server.kill()
	atomic.StoreInt32(&errorsSeen, 0)
	for number := 0; number < 3; number++ {
		withinDeadline(t, func() {
			if told := hit(t, open, hundred("k")); !told.Allowed || told.Reason != "unreachable" || told.Err == nil {
				t.Errorf("%+v", told)
			}
		})
		withinDeadline(t, func() {
			told := hit(t, closed, hundred("k"))
			if told.Allowed || told.Status() != 503 || *told.RetryAfterMS != 1000 {
				t.Errorf("%+v", told)
			}
		})
	}
	if errorsSeen != 3 {
		t.Errorf("%d errors were told", errorsSeen)
	}
	if answers, err := closed.Hits(background, []Request{hundred("k"), hundred("k")}); err != nil || len(answers) != 2 || answers[1].Allowed {
		t.Error(answers, err)
	}
	server.start()
	for _, client := range []*Client{open, closed} {
		told := hit(t, client, hundred("again"))
		for number := 0; number < 20 && told.Err != nil; number++ {
			told = hit(t, client, hundred("again"))
		}
		if told.Limit == nil || *told.Limit != 100 {
			t.Errorf("%+v", told)
		}
	}
}

func TestARefusedConnectionIsTriedAgain(t *testing.T) {
	server := newServer(t)
	client := server.client(Options{Deadline: long, OnFailure: Deny})
	server.kill()
	restarted := make(chan struct{})
	go func() {
		time.Sleep(200 * time.Millisecond)
		server.start()
		close(restarted)
	}()
	if told := hit(t, client, hundred("r")); !told.Allowed {
		t.Errorf("%+v", told)
	}
	<-restarted
}

func TestStoppedItIsNoHangAndNothingIsChargedTwice(t *testing.T) {
	server := newServer(t)
	client := server.client(Options{Deadline: short, OnFailure: Deny})
	calm := server.client(Options{Deadline: long})
	hit(t, client, hundred("s"))
	left := func() int64 { return *hit(t, calm, Request{Limiter: "hundred", Key: "s", Peek: true}).Remaining }
	before := left()
	server.stopped(func() {
		for number := 0; number < 3; number++ {
			withinDeadline(t, func() {
				if told := hit(t, client, hundred("s")); told.Err == nil {
					t.Errorf("%+v", told)
				}
			})
		}
	})
	time.Sleep(200 * time.Millisecond) // for what lies in sockets to be read, if it is
	if after := left(); after < before-3 {
		t.Errorf("%d were left before three hits, and %d after", before, after)
	}
}

func TestAnAnswerThatNeverEndsIsNoHang(t *testing.T) {
	url, _ := oddServer(t, func(connection net.Conn) {
		_, err := connection.Write([]byte("HTTP/1.1 200 OK\r\nX-Slow: "))
		for ; err == nil; _, err = connection.Write([]byte("x")) {
			time.Sleep(20 * time.Millisecond)
		}
	})
	client, _ := New(url, Options{Deadline: short, OnFailure: Deny})
	withinDeadline(t, func() { hit(t, client, hundred("u1")) })
}

func TestWhatWasSentIsNeverSentAgain(t *testing.T) {
	url, read := oddServer(t, func(net.Conn) {})
	client, _ := New(url, Options{Deadline: long})
	if told := hit(t, client, hundred("u1")); told.Err == nil || atomic.LoadInt32(read) != 1 {
		t.Errorf("%+v, and it came %d times", told, *read)
	}
}

func TestAnswersThatAreNoDecision(t *testing.T) {
	for _, answer := range []string{"502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno!", "200 OK\r\nContent-Length: 2\r\n\r\n[]", "302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"} {
		url, read := oddServer(t, func(connection net.Conn) { _, _ = connection.Write([]byte("HTTP/1.1 " + answer)) })
		client, _ := New(url, Options{Deadline: long})
		if told := hit(t, client, hundred("u1")); told.Reason != "unreachable" || atomic.LoadInt32(read) != 1 {
			t.Errorf("%q: %+v", answer, told)
		}
	}
}

func TestACallerWhoLeavesIsNoDecision(t *testing.T) {
	left, leave := context.WithCancel(background)
	leave()
	if _, err := newServer(t).client(Options{Deadline: long}).Hit(left, "hundred", "u1"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestMiddleware(t *testing.T) {
	server := newServer(t)
	welcome := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("welcome")) })
	ask := func(r *http.Request) *Request {
		if user := r.Header.Get("X-User"); user != "" {
			return &Request{Limiter: "api", Key: user}
		}
		return nil
	}
	get := func(limit Limit, user string) *httptest.ResponseRecorder {
		request := httptest.NewRequest("GET", "/", nil)
		request.Header.Set("X-User", user)
		answer := httptest.NewRecorder()
		limit.Handler(welcome).ServeHTTP(answer, request)
		return answer
	}
	limit := Limit{Client: server.client(Options{Deadline: long}), Ask: ask, LegacyHeaders: true}
	for _, left := range []string{"2", "1", "0"} {
		answer := get(limit, "u1")
		isTold := strings.HasPrefix(answer.Header().Get("RateLimit"), `"api";r=`+left) && answer.Header().Get("X-RateLimit-Remaining") == left
		if answer.Code != 200 || answer.Body.String() != "welcome" || !isTold {
			t.Errorf("%+v", answer)
		}
	}
	limit.LegacyHeaders = false
	denied := get(limit, "u1")
	if denied.Code != 429 || denied.Header().Get("Content-Type") != "application/problem+json" || denied.Header().Get("Retry-After") == "" ||
		denied.Header().Get("X-RateLimit-Limit") != "" || !strings.Contains(denied.Body.String(), "#quota-exceeded") {
		t.Errorf("%+v", denied)
	}
	if answer := get(limit, ""); answer.Code != 200 || answer.Header().Get("RateLimit") != "" {
		t.Errorf("it was asked: %+v", answer)
	}
	if answer := get(limit, strings.Repeat("u", 513)); answer.Code != 500 {
		t.Errorf("a name that is no key: %+v", answer)
	}
	server.kill()
	limit.Client = server.client(Options{Deadline: short})
	withinDeadline(t, func() {
		if answer := get(limit, "u1"); answer.Code != 200 {
			t.Errorf("%+v", answer)
		}
	})
	limit.Client = server.client(Options{Deadline: short, OnFailure: Deny})
	withinDeadline(t, func() {
		answer := get(limit, "u1")
		if answer.Code != 503 || answer.Header().Get("Retry-After") != "1" || !strings.Contains(answer.Body.String(), "#temporary-reduced-capacity") {
			t.Errorf("%+v", answer)
		}
	})
}
