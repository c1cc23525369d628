// Package policystate stores which attachments have network policies, which of them share one,
// and which labels and addresses they have. What attachments share in the kernel, a policy's
// chains and the set of a selection, is made by the first attachment that needs it and removed
// after the last one, so its users are counted here.
//
// A directory of the state directory has:
//
//	lock                      shared by attachments that come and go, exclusive to what makes
//	                          and removes policies
//	members/KEY.json          an attachment with its labels and addresses
//	members/by/LABEL/KEY      an empty file for each of its labels, to find members by them
//	policies/ID.json          a policy
//	policies/ID.users/KEY     an empty file for each attachment with the policy
//	groups/NUMBER             a symbolic link for each group of links, to the ID of its policy
//	selections/NAME.json      a selection
//	selections/NAME.users/ID  an empty file for each policy that uses it
//	selections/by/LABEL/NAME  an empty file for one of the labels that it requires
//
// A policy without users is one that is being made or removed, or one whose process died
// meanwhile. It has no directory of users, or an empty one. All changes can be repeated.
package policystate
