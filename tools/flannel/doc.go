// Package flannel is empty. Its module pins the reference plugin "flannel": the last
// release that the repository of the other reference plugins had. It is a module of its
// own because module tools pins a later release of the others.
package flannel
