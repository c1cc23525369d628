package bench

import "fmt"

// targets returns the targets, most of them ratios of p50 within one run.
func targets(s *size) []Target {
	var all []Target
	most := func(limit float64, what, of, to string) {
		all = append(all, Target{What: what, Of: of, To: to, Limit: limit})
	}
	least := func(limit float64, what, of, to string) {
		all = append(all, Target{What: what, Of: of, To: to, Limit: limit, AtLeast: true})
	}
	alone := func(limit float64, unit, what, of string) {
		all = append(all, Target{What: what, Of: of, Limit: limit, Unit: unit})
	}
	for _, kind := range []string{"bridge", "ptp"} {
		add, del := "ADD, "+kind, "DEL, "+kind
		most(1.6, add+": native to baseline", key(add, nativeName), key(add, baselineName))
		least(100, add+": exec to native", key(add, execName), key(add, nativeName))
		most(1.2, del+": native to baseline", key(del, nativeName), key(del, baselineName))
	}
	most(2, reusedTitle+": native to baseline", key(reusedTitle, nativeName), key(reusedTitle, baselineName))
	for _, kind := range []string{"bridge", "ptp"} {
		title, many := removeTitle(kind), removalsTitle(kind, s.removals)
		alone(1e-3, seconds, title+": acknowledged", key(title, acknowledgedName))
		all = append(all, Target{What: many + ": acknowledged", Of: key(many, acknowledgedName), Limit: 2000, Unit: rate, AtLeast: true})
	}
	most(2, batchTitle+": native to baseline", key(batchTitle, nativeName), key(batchTitle, baselineName))
	for _, kind := range []string{"bridge", "ptp"} {
		least(0.6, burstTitle(kind)+": rate, native to baseline", key(burstTitle(kind), nativeName), key(burstTitle(kind), baselineName))
	}
	all = append(all, growthTargets(s)...)
	most(1.05, packetTitle(s.mappings)+": native, to 1 mapping",
		key(packetTitle(s.mappings), nativeName), key(packetTitle(1), nativeName))
	least(8, processTitle+": reference to allocnet", key(processTitle, referenceName), key(processTitle, allocnetName))
	least(15, processesTitle+": reference to allocnetd", key(processesTitle, referenceName), key(processesTitle, daemonName))
	alone(3e-3, seconds, throughTitle+": allocnetd", key(throughTitle, daemonName))
	all = append(all, Target{What: crowdTitle + ": allocnetd", Of: key(crowdTitle, daemonName), Limit: 550, Unit: rate, AtLeast: true})
	for _, name := range []string{apiName, throughName} {
		most(1.5, cpuTitle+": "+name+", to the library", key(cpuTitle, name), key(cpuTitle, nativeName))
		alone(1.5e-3, seconds, cpuTitle+": "+name, key(cpuTitle, name))
	}
	alone(2.5e-3, seconds, removedTitle+": allocnetd", key(removedTitle, daemonName))
	all = append(all, poolTargets()...)
	for _, kind := range []string{"bridge", "ptp"} {
		title := policyTitle("ADD", kind)
		for _, name := range []string{sharedName, ownName} {
			most(1.3, title+": "+name+", to none", key(title, name), key(title, openName))
		}
	}
	most(1.1, policyConnectTitle+": "+crowdedName+", to none", key(policyConnectTitle, crowdedName), key(policyConnectTitle, openName))
	alone(2e-3, seconds, againTitle+": native", key(againTitle, nativeName))
	alone(2e-3, seconds, unknownTitle+": native", key(unknownTitle, nativeName))
	for _, n := range s.heal {
		alone(1, seconds, healTitle(n)+": allocnetd", key(healTitle(n), daemonName))
	}
	all = append(all, Target{What: collectTitle(s.collect) + ": native", Of: key(collectTitle(s.collect), nativeName), Limit: 300, Unit: rate, AtLeast: true})
	most(1.3, throughTitle+" "+beyondTitle[4:]+": to an empty program", key(beyondTitle, daemonName), key(emptyTitle, emptyName))
	alone(4<<10, memory, memoryTitle+": native", key(memoryTitle, nativeName))
	return all
}

// poolTargets returns the targets of Setups from a pool.
func poolTargets() []Target {
	var all []Target
	for _, kind := range []string{"bridge", "ptp"} {
		title, worst, refill := takeTitle(kind), pacedWorstTitle(kind), refillTitle(kind)
		pooled := key(title, pooledName)
		all = append(all,
			Target{What: title + ": pooled to baseline", Of: pooled, To: key(title, baselineName), Limit: 0.25},
			Target{What: title + ": exec to pooled", Of: key(title, execName), To: pooled, Limit: 800, AtLeast: true},
			Target{What: worst + ": pooled", Of: key(worst, pooledName), Limit: 2e-3, Unit: seconds},
			Target{What: refill, Of: key(refill, pooledName), Limit: 500, Unit: rate, AtLeast: true})
	}
	return all
}

// growthTargets returns the targets with many allocations present.
func growthTargets(s *size) []Target {
	var all []Target
	for _, f := range s.flat {
		for _, present := range f.present {
			limit := 1.25
			if present >= 10000 {
				limit = 1.5
			}
			for _, operation := range []string{"ADD", "DEL"} {
				many, none := flatTitle(operation, f.kind, present), flatTitle(operation, f.kind, 0)
				all = append(all, Target{
					What: fmt.Sprintf("%s: native, to none present", many), Limit: limit,
					Of: key(many, nativeName), To: key(none, nativeName),
				})
			}
		}
	}
	for _, kind := range []string{"bridge", "ptp"} {
		title := clusterTitle("ADD", kind, s.hosts)
		all = append(all, Target{
			What: title + ": native, to none", Limit: 1.1, Of: key(title, nativeName), To: key(clusterTitle("ADD", kind, 0), nativeName),
		})
	}
	for _, operation := range []string{"ADD", "DEL"} {
		many, none := ownedTitle(operation, s.many), ownedTitle(operation, 0)
		all = append(all, Target{
			What: many + ": allocnetd, to none present", Limit: 1.5, Of: key(many, daemonName), To: key(none, daemonName),
		})
	}
	for _, what := range []string{s.many.listTitle(), s.many.restartTitle()} {
		all = append(all, Target{What: what + ": allocnetd", Limit: 5, Unit: seconds, Of: key(what, daemonName)})
	}
	return all
}
