package configurator

import "github.com/allocnet/allocnet"

// Aliases of the types of package allocnet, which a client.Client uses as well.
type (
	Allocation    = allocnet.Allocation
	DNS           = allocnet.DNS
	AttachOptions = allocnet.AttachOptions
	Bandwidth     = allocnet.Bandwidth
	IPRange       = allocnet.IPRange

	Status    = allocnet.Status
	Interface = allocnet.Interface
	Address   = allocnet.Address
	Route     = allocnet.Route

	Record        = allocnet.Record
	NetworkRecord = allocnet.NetworkRecord
	PortWait      = allocnet.PortWait
	Phase         = allocnet.Phase
	Change        = allocnet.Change
	Engine        = allocnet.Engine
	Network       = allocnet.Network

	Scope         = allocnet.Scope
	GCReport      = allocnet.GCReport
	RepairReport  = allocnet.RepairReport
	RecoverReport = allocnet.RecoverReport
	Leftover      = allocnet.Leftover
	Step          = allocnet.Step
	HistoryQuery  = allocnet.HistoryQuery
	HistoryEntry  = allocnet.HistoryEntry
	HistoryStep   = allocnet.HistoryStep
	Service       = allocnet.Service
)

// Aliases of the error types of package allocnet.
type (
	AllocationError = allocnet.AllocationError
	LeftoverError   = allocnet.LeftoverError
	ListenerError   = allocnet.ListenerError
	NetnsError      = allocnet.NetnsError
	NetworkError    = allocnet.NetworkError
	PortTakenError  = allocnet.PortTakenError
	RecordError     = allocnet.RecordError
	RevisionError   = allocnet.RevisionError
	StateDirError   = allocnet.StateDirError
	SubnetError     = allocnet.SubnetError
	UnservedError   = allocnet.UnservedError
)

// The errors of package allocnet, for errors.Is.
var (
	ErrInvalidConfig      = allocnet.ErrInvalidConfig
	ErrInvalidAllocation  = allocnet.ErrInvalidAllocation
	ErrDifferent          = allocnet.ErrDifferent
	ErrExists             = allocnet.ErrExists
	ErrNotFound           = allocnet.ErrNotFound
	ErrUnknownNetwork     = allocnet.ErrUnknownNetwork
	ErrUnserved           = allocnet.ErrUnserved
	ErrPluginNotInstalled = allocnet.ErrPluginNotInstalled
	ErrInvalidResult      = allocnet.ErrInvalidResult
	ErrNoAddress          = allocnet.ErrNoAddress
	ErrNoPort             = allocnet.ErrNoPort
	ErrInUse              = allocnet.ErrInUse
	ErrUnprivileged       = allocnet.ErrUnprivileged
	ErrExhausted          = allocnet.ErrExhausted
	ErrAddressUnavailable = allocnet.ErrAddressUnavailable
	ErrSubnetTaken        = allocnet.ErrSubnetTaken
	ErrBridgeFull         = allocnet.ErrBridgeFull
	ErrLimit              = allocnet.ErrLimit
	ErrPortTaken          = allocnet.ErrPortTaken
	ErrListener           = allocnet.ErrListener
	ErrRevision           = allocnet.ErrRevision
	ErrCannotUpdate       = allocnet.ErrCannotUpdate
	ErrSetUp              = allocnet.ErrSetUp
	ErrUnhealthy          = allocnet.ErrUnhealthy
	ErrNotChecked         = allocnet.ErrNotChecked
	ErrIncomplete         = allocnet.ErrIncomplete
	ErrStateDir           = allocnet.ErrStateDir
	ErrNewer              = allocnet.ErrNewer
)

// MaxPluginDirs is the maximum number of PluginDirs of an Allocation.
const MaxPluginDirs = allocnet.MaxPluginDirs

// The phases of a record.
const (
	PhaseAdding   = allocnet.PhaseAdding
	PhaseReady    = allocnet.PhaseReady
	PhaseDeleting = allocnet.PhaseDeleting
)

// The engines.
const (
	EngineAuto   = allocnet.EngineAuto
	EngineExec   = allocnet.EngineExec
	EngineNative = allocnet.EngineNative
)

// The steps of operations.
const (
	StepLock       = allocnet.StepLock
	StepPlan       = allocnet.StepPlan
	StepReserve    = allocnet.StepReserve
	StepAdd        = allocnet.StepAdd
	StepPublish    = allocnet.StepPublish
	StepEnforce    = allocnet.StepEnforce
	StepLimit      = allocnet.StepLimit
	StepRecord     = allocnet.StepRecord
	StepCheck      = allocnet.StepCheck
	StepRepair     = allocnet.StepRepair
	StepRollBack   = allocnet.StepRollBack
	StepWait       = allocnet.StepWait
	StepTake       = allocnet.StepTake
	StepDisconnect = allocnet.StepDisconnect
	StepDel        = allocnet.StepDel
	StepAudit      = allocnet.StepAudit
	StepForce      = allocnet.StepForce
)
