"""Whether slope times step adds up on one network of each family of torchvision and timm, with random weights.

    python benchmarks/slopes.py

Prints the gap as it was found, as a share of the larger of the rise and the score, what of the rise goes around the
layer, and whether slopes were taken throughout.
"""

from __future__ import annotations

import warnings

import timm
import torch
from torchvision import models

import egcam

TORCHVISION = """resnet18 resnext50_32x4d densenet121 mobilenet_v2 mobilenet_v3_small efficientnet_b0 efficientnet_v2_s
convnext_tiny googlenet inception_v3 shufflenet_v2_x0_5 mnasnet0_5 regnet_y_400mf squeezenet1_0 vgg11 alexnet vit_b_16
swin_t swin_v2_t maxvit_t""".split()  # noqa: SIM905
TIMM = """resnet26d seresnet50 ecaresnet26t skresnet18 resnest14d hrnet_w18_small dla34 efficientnet_lite0 ghostnet_100
mobilevit_s mobilevitv2_050 levit_128s deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 cait_xxs24_224
xcit_nano_12_p16_224 pit_ti_224 poolformer_s12 convnextv2_atto edgenext_xx_small mixer_s32_224 gmlp_ti16_224
resmlp_12_224 coat_tiny crossvit_tiny_240 visformer_tiny twins_svt_small pvt_v2_b0 swin_tiny_patch4_window7_224
davit_tiny focalnet_tiny_srf maxvit_nano_rw_256 nfnet_l0 repvgg_a0 rexnet_100 tf_efficientnetv2_b0
beit_base_patch16_224 fastvit_t8 efficientformer_l1 repvit_m0_9 tiny_vit_5m_224 hiera_tiny_224 nextvit_small
inception_resnet_v2 xception41 selecsls42b cspresnet50 darknet53 lcnet_050 tinynet_e vovnet39a""".split()  # noqa: SIM905


def main() -> None:
    warnings.simplefilter("ignore")
    exact = 0
    for name in (*TORCHVISION, *TIMM):
        torch.manual_seed(0)
        own = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
        model = models.get_model(name, weights=None, **own) if name in TORCHVISION else timm.create_model(name)
        side = 224 if name in TORCHVISION else model.default_cfg["input_size"][-1]
        cam = egcam.SlopeCAM(model.eval(), reference=torch.randn(4, 3, side, side), signed=True)
        try:
            found = cam(torch.randn(1, 3, side, side))
        except egcam.EgcamError as error:
            print(f"{name:34s} refused: {error}")
            continue
        sums = found.completeness
        if sums is None:
            print(f"{name:34s} {found.layer}: several layers, whose sums are not told")
            continue
        exact += bool(sums.exact)
        size = max(float(sums.expected.abs()), float(found.scores.abs()), 1e-30)
        gap, around = float(sums.gap.abs()) / size, float(sums.around.abs()) / size
        print(
            f"{name:34s} gap {gap:.0e}  around {around:.0e}  {'slopes' if sums.exact else 'DERIVATIVES'}  {found.layer}"
        )
    print(f"slopes throughout: {exact}")


if __name__ == "__main__":
    main()
