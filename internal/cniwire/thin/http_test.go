package thin

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadAnswer(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	chunked := ok + "Date: today\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, test := range []struct {
		name, answer string
		status       int
		body         string
		err          error
	}{
		{"in one piece", ok + "Content-Length: 4\r\n\r\n{}\n\n", 200, "{}\n\n", nil},
		{"nothing", "HTTP/1.1 204 No Content\r\ncontent-length:0\r\n\r\n", 204, "", nil},
		{"no reason", "HTTP/1.1 429 \r\nContent-Length: 1\r\n\r\nx", 429, "x", nil},
		{"signs of life", chunked + "1\r\n\n\r\n1\r\n\n\r\n2\r\n{}\r\n0\r\n\r\n", 200, "\n\n{}", nil},
		{"a long chunk", chunked + "1000\r\n" + strings.Repeat("x", 4096) + "\r\n0\r\n\r\n", 200, strings.Repeat("x", 4096), nil},
		{"silence", "", 0, "", ErrAway},
		{"half a line", "HTTP/1.1 20", 0, "", ErrAway},
		{"half a head", ok + "Date: today\r\n", 0, "", ErrAway},
		{"half a body", ok + "Content-Length: 4\r\n\r\n{}", 0, "", ErrAway},
		{"life without an answer", chunked + "1\r\n\n\r\n", 0, "", ErrAway},
		{"half a chunk", chunked + "4\r\n{", 0, "", ErrAway},
		{"no end behind the chunks", chunked + "0\r\n", 0, "", ErrAway},
		{"another protocol", "SSH-2.0-x\r\n", 0, "", ErrHung},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 0, "", ErrHung},
		{"status of four digits", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", 0, "", ErrHung},
		{"a status in between", "HTTP/1.1 102 Processing\r\n\r\n", 0, "", ErrHung},
		{"no carriage return", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", 0, "", ErrHung},
		{"no length", ok + "\r\n{}", 0, "", ErrHung},
		{"two lengths", ok + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 0, "", ErrHung},
		{"length and chunks", ok + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "", ErrHung},
		{"negative length", ok + "Content-Length: -1\r\n\r\n", 0, "", ErrHung},
		{"compressed", ok + "Transfer-Encoding: gzip\r\n\r\n", 0, "", ErrHung},
		{"too long", ok + "Content-Length: " + strconv.Itoa(MaxResponse+1) + "\r\n\r\n", 0, "", ErrHung},
		{"too long a chunk", chunked + "ffffffffffff\r\n", 0, "", ErrHung},
		{"too long for a number", chunked + "ffffffffffffffff\r\n", 0, "", ErrHung},
		{"a field without a value", ok + "Nonsense\r\n\r\n", 0, "", ErrHung},
		{"a long line", ok + "X: " + strings.Repeat("x", maxLine) + "\r\n", 0, "", ErrHung},
		{"many fields", ok + strings.Repeat("X: x\r\n", maxFields) + "\r\n", 0, "", ErrHung},
		{"a chunk that is longer than it says", chunked + "1\r\nxy\r\n0\r\n\r\n", 0, "", ErrHung},
		{"a trailer", chunked + "0\r\nX: x\r\n\r\n", 0, "", ErrHung},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, body, err := readAnswer(strings.NewReader(test.answer))
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.status, status)
			require.Equal(t, test.body, string(body))
		})
	}
}

// TestManyChunks cannot get around the bound.
func TestManyChunks(t *testing.T) {
	one := "100000\r\n" + strings.Repeat("x", 1<<20) + "\r\n"
	_, _, err := readAnswer(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat(one, 5)))
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, "too long")
}

// FuzzReadAnswer: whatever is understood, is understood as net/http does.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 503 no\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		status, body, err := readAnswer(bytes.NewReader(data))
		if err != nil {
			require.Zero(t, status)
			return
		}
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(data)), &http.Request{Method: http.MethodPost})
		if err != nil {
			return // of header fields that do not matter it is the better judge
		}
		defer answer.Body.Close()
		require.Equal(t, answer.StatusCode, status)
		want, err := io.ReadAll(answer.Body)
		if err == nil && status != http.StatusNoContent && status != http.StatusNotModified {
			require.Equal(t, string(want), string(body))
		}
	})
}
