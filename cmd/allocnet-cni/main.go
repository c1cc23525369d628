package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

const program = "allocnet-cni"

func main() {
	if os.Getenv("CNI_COMMAND") == "" { // run by hand, or by Nomad to read the version
		_, _ = os.Stderr.WriteString(sdk.About("allocnet") + "\nCNI protocol versions supported: " + strings.Join(cni.Versions, ", ") + "\n")
		return
	}
	os.Exit(serve(os.Stdin).print(os.Stdout))
}

// answer is the plugin's answer to the runtime: a result, an error, or neither.
type answer struct{ Result, Error json.RawMessage }

// print prints the answer and returns the exit code.
func (a *answer) print(stdout io.Writer) int {
	out, code := a.Result, 0
	if a.Error != nil {
		out, code = a.Error, 1
	}
	if _, err := stdout.Write(out); err != nil {
		return 1
	}
	return code
}

// answerOf returns an error as the answer to a configuration with the given version.
func answerOf(err error, version string) *answer {
	e := cni.Error{Code: cni.CodeInternal, Msg: err.Error()}
	if coded := (*cni.Error)(nil); errors.As(err, &coded) {
		e = *coded
	}
	if os.Getenv("CNI_COMMAND") == cni.Del {
		e.Msg, e.Details = sdk.RewordDel(e.Msg), sdk.RewordDel(e.Details)
	}
	e.CNIVersion = cni.ReportVersion(version)
	data, err := json.Marshal(e)
	if err != nil {
		panic(err) // text and numbers can be encoded
	}
	return &answer{Error: data}
}

// serve runs the command that the environment names.
func serve(stdin io.Reader) *answer {
	env, err := cni.ReadEnv(os.Getenv)
	if err != nil {
		return answerOf(err, "")
	}
	config, err := cni.ReadConfig(stdin)
	if err != nil {
		return answerOf(err, "")
	}
	o, err := readOptions(config)
	caller := os.Getenv(pluginexec.CallerVariable)
	switch {
	case env.Command == cni.Version: // its configuration is only a version
		return &answer{Result: cni.VersionResult(o.version)}
	case caller != "":
		return refuseCaller(caller, env.Command, o.version)
	case err != nil:
		return answerOf(err, o.version)
	}
	return o.run(cni.Request{Env: env, Config: config})
}

// refuseCaller returns the answer when the daemon or this program itself runs
// allocnet-cni as a plugin. DEL and GC succeed, because such an ADD is refused and so
// has set up nothing.
func refuseCaller(caller, command, version string) *answer {
	if command == cni.Del || command == cni.GC {
		return &answer{}
	}
	return answerOf(&cni.Error{
		Code: cni.CodeInvalidConfig, Msg: program + " was called as a plugin of " + caller,
		Details: "use it only in configurations of the runtime",
	}, version)
}

// run sends the request to the daemon. If the daemon is not reachable, run serves the
// request in this process. If the daemon is reachable but does not answer, run does so
// only for a DEL. Any other command then ends with an error, because the daemon may
// have begun it; an ADD is undone by the daemon when the connection is closed.
func (o *options) run(r cni.Request) *answer {
	command := r.Env.Command
	a, err := o.ask(r)
	if err == nil {
		err = a.verify(command, o.version)
	}
	switch {
	case err == nil:
		return a
	case errors.Is(err, errNotReachable), errors.Is(err, errNoAnswer) && command == cni.Del:
		return o.fallback(r, err)
	case !errors.Is(err, errNoAnswer):
		return answerOf(err, o.version)
	}
	e := &cni.Error{Code: cni.CodeTryAgainLater, Msg: errNoAnswer.Error(), Details: err.Error()}
	if command == cni.Status {
		e.Code = cni.CodeNotAvailable
	}
	return answerOf(e, o.version)
}
