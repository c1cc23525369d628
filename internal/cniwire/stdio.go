package cniwire

import (
	"encoding/json"
	"io"

	"github.com/allocnet/allocnet/internal/cniwire/thin"
)

// ReadConfig reads a configuration from stdin. The error is an *Error.
func ReadConfig(stdin io.Reader) ([]byte, error) {
	config, err := thin.ReadConfig(stdin)
	return config, plain(err)
}

// Print gives a response to a runtime, in the version of its configuration, and
// returns the exit code.
func Print(stdout io.Writer, version string, r *Response) int {
	out, code := []byte(r.Result), 0
	if r.Error != nil {
		e := *r.Error
		e.CNIVersion = ReportVersion(version)
		encoded, err := json.Marshal(e)
		if err != nil {
			panic(err) // text and numbers can be encoded
		}
		out, code = encoded, 1
	}
	if _, err := stdout.Write(out); err != nil {
		return 1 // there is nobody to tell
	}
	return code
}
