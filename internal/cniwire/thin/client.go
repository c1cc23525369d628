package thin

import (
	"errors"
	"strconv"
	"syscall"
	"time"
)

// Answer is what the daemon said: a result, an error, or neither, as JSON. An error is
// for the runtime as it is.
type Answer struct{ Result, Error []byte }

// Request is a request: the Variables, in their order, and a configuration, which is
// JSON. The error is an *Error.
func Request(values []string, config []byte) ([]byte, error) {
	body := []byte(`{"env":{`)
	for i, name := range Variables {
		if i > 0 {
			body = append(body, ',')
		}
		body = quote(append(quote(body, name), ':'), values[i])
	}
	body = append(body, `},"config":`...)
	body = append(append(body, config...), '}')
	if len(body) > MaxRequest {
		return nil, &Error{
			Code: CodeInvalidEnvironment, Msg: "environment and configuration take more than " + strconv.Itoa(MaxRequest) + " bytes",
		}
	}
	return body, nil
}

// Call has the daemon on a unix socket do what a request asks for. Patience is how long
// it may show no sign of life. The error is ErrAway or ErrHung; what the daemon refuses
// is in the Answer.
func Call(socket string, patience time.Duration, request []byte) (*Answer, error) {
	return call(socket, patience, time.Now().Add(Longest), request)
}

// call is Call with the time at which it ends in any case.
func call(socket string, patience time.Duration, until time.Time, request []byte) (*Answer, error) {
	c, err := dial(socket, patience, until)
	if err != nil {
		return nil, while("connect to "+socket, err)
	}
	defer c.close()
	head := "POST " + Path + " HTTP/1.1\r\nHost: allocnetd\r\nContent-Type: application/json\r\n" +
		"Connection: close\r\nContent-Length: " + strconv.Itoa(len(request)) + "\r\n\r\n"
	// A daemon that refuses the request may answer before it has read it.
	if err := c.write(append([]byte(head), request...)); errors.Is(err, ErrHung) {
		return nil, while("send to "+socket, err)
	}
	return receive(c, socket)
}

// Resume is the rest of a Call: the request was sent on fd, which is closed in the end.
func Resume(fd int, socket string, patience time.Duration) (*Answer, error) {
	syscall.CloseOnExec(fd)
	c, err := adopt(fd, patience, time.Now().Add(Longest))
	if err != nil {
		return nil, while("take over the connection to "+socket, err)
	}
	defer c.close()
	return receive(c, socket)
}

func receive(c *conn, socket string) (*Answer, error) {
	status, body, err := readAnswer(c)
	if err != nil {
		return nil, while("answer on "+socket, err)
	}
	if status != statusOK {
		return &Answer{Error: refusal(status, body).JSON("")}, nil
	}
	return readBody(body, socket)
}

// readBody reads the body of an answer: an object that has nothing but a result or an
// error, and no key twice.
func readBody(body []byte, socket string) (*Answer, error) {
	answer, known := &Answer{}, true
	ok := Members(body, func(key string, value []byte) {
		switch {
		case key == "result" && answer.Result == nil:
			answer.Result = value
		case key == "error" && answer.Error == nil:
			answer.Error = value
		default:
			known = false
		}
	})
	if !ok || !known {
		return nil, while("answer on "+socket, garbled("not as agreed"))
	}
	return answer, nil
}

// The status codes of HTTP that make a difference.
const (
	statusOK              = 200
	statusRequestTimeout  = 408
	statusTooManyRequests = 429
	statusUnavailable     = 503
)

// refusal is the error of a request that did not get as far as the operation.
func refusal(status int, body []byte) *Error {
	e := &Error{Code: CodeInternal, Msg: "allocnetd refused the request: HTTP status " + strconv.Itoa(status)}
	switch status {
	case statusRequestTimeout, statusTooManyRequests, statusUnavailable:
		e.Code = CodeTryAgainLater
	}
	Members(body, func(key string, value []byte) {
		if key != "error" {
			return
		}
		Members(value, func(key string, value []byte) {
			if key == "message" {
				e.Details, _ = Text(value)
			}
		})
	})
	return e
}
