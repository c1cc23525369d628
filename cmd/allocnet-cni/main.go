package main

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/cniwire/thin"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "" { // run by hand, or by Nomad to read the version
		_, _ = os.Stderr.WriteString(thin.About("allocnet") + "\nCNI protocol versions supported: " + strings.Join(thin.Versions, ", ") + "\n")
		return
	}
	out, err := run()
	if _, writeErr := os.Stdout.Write(out); err != nil || writeErr != nil {
		os.Exit(1)
	}
}

// errSaid: what the runtime gets is an error.
var errSaid = errors.New("said on stdout")

// run returns what the runtime gets. It does not return where the process becomes
// another program.
func run() (out []byte, err error) {
	version := ""
	answer, err := ask(&version)
	if err == nil {
		if answer.Error != nil {
			return answer.Error, errSaid
		}
		return answer.Result, nil
	}
	var e *thin.Error
	if !errors.As(err, &e) {
		e = &thin.Error{Code: thin.CodeInternal, Msg: err.Error()}
	}
	return e.JSON(version), errSaid
}

// ask gets the answer, and the version of CNI in which to say an error.
func ask(version *string) (*thin.Answer, error) {
	values, err := thin.Environ(os.Getenv)
	if err != nil {
		return nil, err
	}
	config, err := thin.ReadConfig(os.Stdin)
	if err != nil {
		return nil, err
	}
	command := values[0]
	o, err := readOptions(config)
	*version = o.version
	if command == thin.Version { // whose configuration is just a version
		return &thin.Answer{Result: thin.VersionResult(o.version)}, nil
	}
	if caller := os.Getenv(callerVariable); caller != "" {
		return below(caller, command)
	}
	if err != nil {
		return nil, err
	}
	answer, err := call(o, values, config)
	if err == nil {
		err = answer.Verify(command, o.version)
	}
	switch {
	case errors.Is(err, thin.ErrAway), errors.Is(err, thin.ErrHung) && command == thin.Del:
		return nil, alone(config, err)
	case errors.Is(err, thin.ErrHung):
		return nil, hung(command, err)
	}
	return answer, err
}

// call has the daemon do it, or gets the answer of one that was asked already: the only
// argument is the connection's descriptor then, from allocnet-cni-front.
func call(o options, values []string, config []byte) (*thin.Answer, error) {
	if len(os.Args) == 2 {
		if fd, err := strconv.Atoi(os.Args[1]); err == nil && fd > 2 {
			return thin.Resume(fd, o.socket, o.patience)
		}
	}
	request, err := thin.Request(values, config)
	if err != nil {
		return nil, err
	}
	return thin.Call(o.socket, o.patience, request)
}

// callerVariable is that of package pluginexec.
const callerVariable = "ALLOCNET_CALLER"

// below is the answer to one whose plugins run for the sake of this one. There is
// never anything to take away.
func below(caller, command string) (*thin.Answer, error) {
	if command == thin.Del || command == thin.GC {
		return &thin.Answer{}, nil
	}
	return nil, &thin.Error{
		Code: thin.CodeInvalidConfig, Msg: "allocnet-cni was called for a plugin of " + caller,
		Details: "use it in configurations of the runtime alone",
	}
}

// hung is what a runtime gets that does not wait for what was begun.
func hung(command string, err error) error {
	e := &thin.Error{Code: thin.CodeTryAgainLater, Msg: thin.ErrHung.Error(), Details: err.Error()}
	if command == thin.Status {
		e.Code = thin.CodeNotAvailable
	}
	return e
}
