package tidegate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const defaultHold = 30 * time.Second

// Outcome is what became of a Commit or a Cancel.
type Outcome int

const (
	// Unknown: no answer came, and Err says why. It is not sent again; what was charged stays charged unless it did arrive.
	Unknown Outcome = iota
	// Done: the rest is given back.
	Done
	// NotReserved: it had ended before, and what it had charged stays.
	NotReserved
	// Nothing: there was no reservation, and nothing was sent.
	Nothing
)

// Settled is what became of a Commit or a Cancel, and what the server tells of it.
type Settled struct {
	Outcome   Outcome `json:"-"`
	Cost      int64   `json:"cost"`
	GivenBack int64   `json:"given_back"`
	Excess    int64   `json:"excess"`
	Err       error   `json:"-"`
}

// Reserve is a hit whose cost can be corrected, by the decision's Reservation, for a time: hold, or 30 s if that is 0. The
// request names a limiter and a key.
func (c *Client) Reserve(ctx context.Context, request Request, hold time.Duration) (Decision, error) {
	if request.Limiter == "" || request.Key == "" || request.Peek {
		return Decision{}, errors.New("tidegate: a reservation needs a Limiter and a Key, and no Peek")
	}
	if hold == 0 {
		hold = defaultHold
	}
	body := struct {
		Request
		For string `json:"for"`
	}{request, fmt.Sprintf("%dms", hold.Milliseconds())}
	return c.decide(ctx, "/v1/reserve", body)
}

// Commit ends a reservation at its real cost: the rest is given back, or the excess charged. It is sent once. Its error is a
// *Refused or the context's.
func (c *Client) Commit(ctx context.Context, reservation string, cost uint32) (Settled, error) {
	text := []byte(fmt.Sprintf(`{"cost":%d}`, cost))
	return c.settle(ctx, http.MethodPost, reservation, "/commit", bytes.NewReader(text))
}

// Cancel ends a reservation and gives all of it back. It is sent once.
func (c *Client) Cancel(ctx context.Context, reservation string) (Settled, error) {
	return c.settle(ctx, http.MethodDelete, reservation, "", http.NoBody)
}

func (c *Client) settle(ctx context.Context, method, reservation, path string, body io.Reader) (Settled, error) {
	if reservation == "" {
		return Settled{Outcome: Nothing}, nil
	}
	reply, err := c.send(ctx, method, "/v1/reservations/"+url.PathEscape(reservation)+path, body)
	settled := Settled{Outcome: Done}
	if err == nil {
		err = reply.read(&settled, "given_back")
	}
	var refused *Refused
	switch {
	case err == nil:
		return settled, nil
	case errors.As(err, &refused) && refused.Code == "not_reserved":
		return Settled{Outcome: NotReserved}, nil
	case refused != nil:
		return Settled{}, refused
	case errors.Is(ctx.Err(), context.Canceled):
		return Settled{Err: err}, ctx.Err()
	}
	c.tell(err)
	return Settled{Err: err}, nil
}

// decide asks for one decision.
func (c *Client) decide(ctx context.Context, path string, body any) (Decision, error) {
	reply, err := c.post(ctx, path, body)
	if err != nil {
		return c.withoutServer(ctx, err)
	}
	var decision Decision
	if err := reply.read(&decision, "allowed"); err != nil {
		return c.withoutServer(ctx, err)
	}
	decision.Fields = passedOn(reply.fields)
	if !decision.Allowed {
		decision.problem = reply.body
	}
	return decision, nil
}
