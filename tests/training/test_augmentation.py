import torch
import torch.nn.functional as F

from relucert.training._augmentation import augment
from relucert.training.config import TrainConfig


def test_every_image_is_a_window_of_its_padded_self_or_of_its_mirror_image():
    x = torch.rand(200, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    out = augment(x, 2, torch.Generator().manual_seed(1))
    padded = F.pad(x, (2, 2, 2, 2))
    windows = padded.unfold(2, 6, 1).unfold(3, 5, 1).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)  # (batch, 25, 3, 6, 5)
    plain = (windows == out[:, None]).flatten(2).all(2)
    mirrored = (windows.flip(-1) == out[:, None]).flatten(2).all(2)
    assert bool((plain.any(1) | mirrored.any(1)).all())
    assert 70 < int(mirrored.any(1).sum()) < 130
    assert (plain | mirrored).any(0).sum() == 25, "every window is drawn"


def test_the_same_generator_draws_the_same():
    x = torch.rand(10, 1, 4, 4)
    first, second = (augment(x, 1, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_digits_are_moved_and_never_mirrored():
    x = torch.zeros(200, 1, 6, 6)
    x[:, 0, 2, 2], x[:, 0, 2, 3] = 1.0, 0.5
    out = augment(x, 1, torch.Generator().manual_seed(1), mirror=False)
    bright, dim = (out == value for value in (1.0, 0.5))
    assert torch.equal(bright.flatten(1).int().argmax(1) + 1, dim.flatten(1).int().argmax(1))
    assert len({tuple(place) for place in bright.nonzero()[:, 2:].tolist()}) == 9
    assert TrainConfig(data="mnist", crop=1).padding == 1
    assert TrainConfig(data="mnist").padding == 0
    assert TrainConfig(data="cifar10").padding == 2
    assert TrainConfig(data="cifar10", augment=False).padding == 0
