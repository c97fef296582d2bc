package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

var _ = Describe("A tenant", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	shared := func(port int32) func(*corev1.Service) {
		return func(service *corev1.Service) {
			annotated("metallb.io/allow-shared-ip", "together")(service)
			service.Spec.Ports[0].Port = port
		}
	}

	It("grows by one for Services that share an address, and by one more for one whose port is taken", func(ctx SpecContext) { // B35, B38
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		single := s.serve(ctx, "single")
		together := []*corev1.Service{s.serve(ctx, "a", shared(80)), s.serve(ctx, "b", shared(81)), s.serve(ctx, "c", shared(82))}
		startManager(ctx, "--shrink-grace="+grace)
		address := s.addressOf(ctx, together[0])
		for _, service := range together[1:] {
			Expect(s.addressOf(ctx, service)).To(Equal(address))
		}
		Expect(s.addressOf(ctx, single)).NotTo(Equal(address))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})

		Expect(s.addressOf(ctx, s.serve(ctx, "d", shared(81)))).To(Equal(s.net + "12"))
		Expect(s.addressOf(ctx, s.serve(ctx, "e", shared(83)))).To(BeElementOf(address, s.net+"12"))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1})
	})
})
