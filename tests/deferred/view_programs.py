"""Programs that return views, share memory, and compute what torch does in several ways."""

from __future__ import annotations

from .files import SOUND
from .odd_programs import written
from .programs import Program

_TEXTS = """
# part of memory that nothing else has
x = F.to_tensor(image)
with torch.inference_mode():
    inference = F.to_tensor(image)[:, 5:20, 4:30]
return x[:, 5:20, 4:30].data, inference, x.permute(1, 2, 0)[3:9, 4:12].detach()
# part of memory with channels innermost
return F.pil_to_tensor(image)[:, 5:20, 4:30].data, F.pil_to_tensor(image)[:, 5:20].data
# part of a large memory
return F.to_tensor(image.resize((600, 600)))[:, 5:, 4:].data
# part of a batch
x = torch.stack([F.to_tensor(image.resize((24, 24))), F.to_tensor(image.resize((24, 24))).flip(-1)])
return x[:, :, 3:9, 4:12].data
# one image of a batch
return torch.stack([F.to_tensor(image), F.to_tensor(image).flip(-1)])[1].data
# conversions that share memory
x, y, z = (tv_tensors.Image(F.to_tensor(image)) for _ in range(3))
shared = x.float(), y.type(torch.float32), z.to(torch.float32)
for each in shared:
    each.add_(1)
look([(type(each), each is other) for each, other in zip(shared, (x, y, z))])
return x, y, z, shared
# contiguous images
x = tv_tensors.Image(F.to_tensor(image))
y = x.contiguous()
look([type(y), y is x])
y.mul_(2)
return x, y
# strides of one image
for x in (F.pil_to_tensor(image)[None], F.to_tensor(image)[None, :, 3:9, 4:12]):
    for y in (x * 2, x.flip(-1), x.clone(), x.contiguous(), x.half(), x + torch.ones(3, 1, 1)):
        look(y.stride())
return x
# small floats
return F.to_tensor(image).to(torch.float8_e4m3fn).float()
# sums with a factor
return torch.add(F.to_tensor(image.resize((23, 31))), 2.5, alpha=0.3)
# sums with a factor in place
x = F.to_tensor(image.resize((23, 31)))
x[:, 3:9, 4:12] = 0.37
return x.sub_(2.7, alpha=3), x.half().add(3, alpha=0.3), torch.rsub(x, 0.3, 3)
# remainders of floats
x = F.to_tensor(image)[:, 2:30, 3:10]
return x.remainder(0.0), torch.remainder(2.5, F.pil_to_tensor(image)[:, 2:30, 3:10]), x.div(0.0, rounding_mode="floor")
# not a number
x = F.to_tensor(image)[:, 2:30, 3:10].bfloat16()
return x + float("nan"), x.div(float("nan")), (x / 0.0).clamp(0.1, 0.2)
"""


def view_programs() -> list[Program]:
    """Return each program with a file whose images are deferred."""
    return written(_TEXTS, SOUND[:3])
