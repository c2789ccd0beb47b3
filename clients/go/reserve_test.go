package tidegate

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func TestReserveCommitAndCancel(t *testing.T) {
	client := newServer(t).client(Options{Deadline: long})
	reserve := func(cost uint32) Decision {
		t.Helper()
		held, err := client.Reserve(background, Request{Limiter: "hundred", Key: "u1", Cost: cost}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	held := reserve(40)
	if !held.Allowed || *held.Remaining != 60 {
		t.Fatalf("%+v", held)
	}
	if told, err := client.Commit(background, held.Reservation, 15); err != nil || told != (Settled{Done, 15, 25, 0, nil}) {
		t.Errorf("%+v %v", told, err)
	}
	if told, err := client.Commit(background, held.Reservation, 15); err != nil || told.Outcome != NotReserved {
		t.Errorf("it had ended: %+v %v", told, err)
	}
	if told, err := client.Commit(background, reserve(5).Reservation, 7); err != nil || told.Excess != 2 {
		t.Errorf("%+v %v", told, err)
	}
	if told, err := client.Cancel(background, reserve(70).Reservation); err != nil || told != (Settled{Done, 0, 70, 0, nil}) {
		t.Errorf("%+v %v", told, err)
	}
	denied := reserve(79)
	if denied.Allowed || denied.Reservation != "" || denied.Status() != 429 {
		t.Errorf("%+v", denied)
	}
	if told, err := client.Cancel(background, denied.Reservation); err != nil || told.Outcome != Nothing {
		t.Errorf("%+v %v", told, err)
	}
	var refused *Refused
	if _, err := client.Cancel(background, "no/such name?"); !errors.As(err, &refused) {
		t.Error(err)
	}
	if _, err := client.Reserve(background, Request{Limiter: "unknown", Key: "u1"}, 0); !errors.As(err, &refused) {
		t.Error(err)
	}
	if _, err := client.Reserve(background, Request{Attributes: map[string]string{"user": "u1"}}, 0); err == nil {
		t.Error("attributes cannot be reserved")
	}
}

func TestReserveWithoutAServer(t *testing.T) {
	server := newServer(t)
	var errorsSeen int32
	open := server.client(Options{Deadline: short, OnError: func(error) { atomic.AddInt32(&errorsSeen, 1) }})
	closed := server.client(Options{Deadline: short, OnFailure: Deny})
	server.kill()
	withinDeadline(t, func() {
		if told, err := open.Reserve(background, hundred("u1"), 0); err != nil || !told.Allowed || told.Err == nil {
			t.Errorf("%+v %v", told, err)
		}
	})
	withinDeadline(t, func() {
		if told, err := closed.Reserve(background, hundred("u1"), 0); err != nil || told.Allowed {
			t.Errorf("%+v %v", told, err)
		}
	})
	withinDeadline(t, func() {
		if told, err := open.Cancel(background, "R"); err != nil || told.Outcome != Unknown || told.Err == nil || errorsSeen != 2 {
			t.Errorf("%+v %v", told, err)
		}
	})
}

// net/http sends some requests again when a connection that it used before breaks: not these.
func TestAnEndIsNeverSentTwice(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var ends int32
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				reader := bufio.NewReader(connection)
				for {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, request.Body)
					if request.URL.Path != "/v1/hit" {
						atomic.AddInt32(&ends, 1)
						return
					}
					const body = `{"allowed":true,"reason":"ok"}`
					_, _ = connection.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + body))
				}
			}()
		}
	}()
	client, _ := New("http://"+listener.Addr().String(), Options{Deadline: long})
	for number, end := range []func() (Settled, error){
		func() (Settled, error) { return client.Cancel(background, "R") },
		func() (Settled, error) { return client.Commit(background, "R", 1) },
	} {
		hit(t, client, hundred("u1"))
		if told, err := end(); err != nil || told.Outcome != Unknown {
			t.Errorf("%+v %v", told, err)
		}
		if sent := atomic.LoadInt32(&ends); int(sent) != number+1 {
			t.Errorf("%d were sent, of %d", sent, number+1)
		}
	}
}

func TestCountingOnlyFailuresOrSuccesses(t *testing.T) {
	server := newServer(t)
	client := server.client(Options{Deadline: long})
	const panics = 0
	statuses := func(count Count, key string, wanted ...int) []int {
		var got []int
		for _, status := range wanted {
			limit := Limit{Client: client, Count: count, Ask: func(*http.Request) *Request { return &Request{Limiter: "api", Key: key} }}
			handler := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if decision, is := FromContext(r.Context()); !is || !decision.Allowed {
					t.Error("the handler has no decision")
				}
				if status == panics {
					panic(http.ErrAbortHandler)
				}
				if status != 200 {
					w.WriteHeader(status)
				}
				_, _ = w.Write(nil)
			}))
			answer := httptest.NewRecorder()
			func() {
				defer func() {
					if recover() != nil {
						answer.Code = panics
					}
				}()
				handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
			}()
			got = append(got, answer.Code)
		}
		return got
	}
	if got := statuses(Failures, "f", 200, 302, 200, 204, 401, 200, panics, 403, 200); !reflect.DeepEqual(got, []int{200, 302, 200, 204, 401, 200, panics, 403, 429}) {
		t.Error(got)
	}
	if got := statuses(Successes, "s", 500, panics, 404, 400, 200, 500, 201, 302, 500); !reflect.DeepEqual(got, []int{500, panics, 404, 400, 200, 500, 201, 302, 429}) {
		t.Error(got)
	}
	if _, is := FromContext(background); is {
		t.Error("nobody asked")
	}
}

// A client of a limiter beside it went through the proxy of the environment.
func TestNoProxyComesBetween(t *testing.T) {
	client, _ := New("http://gate.example", Options{})
	if client.http.Transport.(*http.Transport).Proxy != nil {
		t.Error("HTTP_PROXY is obeyed")
	}
}

func TestADeadlineBelowZero(t *testing.T) {
	if _, err := New("", Options{Deadline: -time.Second}); err == nil {
		t.Error("it was accepted")
	}
}

func TestACallbackThatPanicsDoesNotDecide(t *testing.T) {
	server := newServer(t)
	client := server.client(Options{Deadline: short, OnError: func(error) { panic("the callback's own fault") }})
	server.kill()
	if told := hit(t, client, hundred("u1")); !told.Allowed || told.Err == nil {
		t.Errorf("%+v", told)
	}
}

// Newer versions of net/http dial with a context that does not end with the request: dialing went on for ever then, and in an
// outage every call left a goroutine behind.
func TestDialingEndsByItself(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close() // nobody listens there now
	before := runtime.NumGoroutine()
	dial := dialUntilTaken(short)
	ended := make(chan error)
	go func() {
		_, err := dial(context.Background(), "tcp", listener.Addr().String())
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("nobody listens there")
		}
	case <-time.After(long):
		t.Fatal("it goes on")
	}
	if after := runtime.NumGoroutine(); after > before+2 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}
