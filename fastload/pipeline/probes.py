"""JPEG files for calibration: 43x35 pixels of colored noise, one per chroma subsampling."""

from __future__ import annotations

import base64


def probe(subsampling: str) -> bytes:
    """The JPEG file with this subsampling, named as in ``JpegInfo.subsampling``."""
    return base64.b85decode(_PROBES[subsampling])


_PROBES = {
    "gray": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@dzyJ#f03!e^0Ra&J|HJ?p000650RR91000000000000RU80tEp7!~iM~00IF60|WsA2LJ#7000000R"
        "jU61Q7)iArllaQ9&}1Br`%`agyQx+5iXv0RR9$02Qr_(Hyw^LHMqcIV~>MBwU$JO)~|$*!7-bcggWVf=R6v<qMeQ7!-"
        "SF>DdKe%q_^RG%yqenCBeUUB;lu`y^4v>#maKcD8oy!C~~b%?`rKX|pBVglE8Ni-"
        "@~<ixw<{=}hreS>5J0Oo2`@uvLz&C^+qu{{SMUXx8f3#I3ecbDFd>bu{@^q}e1~a(v>UH5qPUOKps<qXJKKBC=afqU$n-"
        "Z?!#r5M~A<000x}fHg~18%>$W<Hajvpu{DR5h(CTsvSOSi38*UPDeGTZ*dgCAdd?)BLtsy5~-"
        "4B6R<9$$fb5l5WAc&qd>%;IR3S<t0JYTDxe?Qv#l8SE6<Pivvn3LtBs_LoYPM2)>D&`c|U4)_l}-D;+g;ffGhvm"
    ),
    "4:4:4": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@d+W<oW6&DvC8Xh|#Av=6iMpJxze0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-"
        "e0+R-e0+R-"
        "|G)qd2mm7hD+2)$00I#K0}%oL!~hup00IL60000000000000000|WsA1pxoV04fjw0s#X91OWmE00000000010s{a95d{(<6BIE~"
        "K{AmfGeTi;lHvcv02u)Q0|5a60000000000000020|W&D0RO}QBM|@r0|WyA0|5a500000000310s{mQ5+M^YK@=h~Q6vA_01N{G"
        "00I#M5dc2`6|IcX9Ju^J_@L!vk?{DPGv(#Y-"
        "<8rwC8gTLi<2qIq6LAO6R@F=DRLerV7FTyv&>HUJ}a%6lYmEw4r_t18bN|dtrg`9nB^E0My4qUZ=q?x(>TERk8J%rAglR>xfB(Rb"
        "DA<5NU4Cl@v&*4fS@eLIOc#<Oa-hKXUC=*Cu=U_P-"
        "K0QDC70jkr+wP+PWzo$PM<oOPSi)+qVUW(%&@{v~ABfI>8x|CIDJ>>K%oY(`HM#2+x4j*T%@B{{TJT)ZS)9L2mA%;x67|#fu>NQ#"
        "?{2kg~wHU)9^$?ma53?(-"
        "X_K&KekD_4z<)$SKWtz>p5f7N5FN)9_^Kgg^jO(o5VP#Iz;VNB7j)v<|NY^3Kj*0Isd9pWkLTHnibtqk2wK2>QpNf#WSIIAitq_{"
        "V@J|;%k@V+`K6H%7t6t>vP>M$htNR9_@6QSY<$B}J?kc!D|I*Y8z8NSrf_K#gE+HU+Dp1z1P0}%iK3H3{*m@r`Ba#tK<Yw&Y!fHg"
        "~18%>$W<Han{Je%@_?~NK($w7!qAR<xVkyTF9$zl0O_=JzYN{3IH;z0QTlab9EYIS4S=?SW2KS%Vm?d~F&BoX0egkY2IrFFn`jPK"
        "Ryoh-I7bW}>FNt{l=x{o4)9$5xguu#b)tadL-?35vQIA2Db0Bo0FT9CL%E;~TPpE&-"
        "scvE|I<5dvRX<HhyDq51N0sW~|A8ywv&X#qf9_4xQ{?%3)DCz*fm7A!sU0iJ>WagPl2Q8E6kJYKCcIzq0$vmI6MKH#ofVC@F+!}1"
        "1z2m2kc&#`<Ax9Vi`b_`;z!ikzZdQ*QKa2m_"
    ),
    "4:2:2": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@d+W<oW6&DvC8Xh|#Av=6iMpJxze0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-"
        "e0+R-e0+R-"
        "|G)qd2mm7hD+2)`00I#K0}%oL!~hup00IL60000000000000000|WsA1pxoV04fjw0s#X91OWmE00000000010s{a95d{(<6BIE~"
        "K{AmfGeTi;lHvcv02cuP0RaI30000000000000030t5m7!~iQ100II50|NmE1poj5000000RjL65d<MI5+XrS6EZ?!ak21$k)hG?"
        "|Jncy0|5X65d#qbKL8c2jL{sp{6YAxk~u9d)+Ah+PEAO3ZtVE`PF&VCoh{^_+A{^Z*!7-"
        "bcggWVf=R6v<qMeQ7!_jr$jSJj>6MF=K6Zz;ew~n2{KDLd(?bD3S&nhd8@-"
        "j<NE@6$)lpfqHgUk2cN&8u?2$(wuDVN^+S%K;1&7k#G?vp{)r=eg8EgSZS=<Oa3n`||mvRxG0je${?dB|4vJa&*#S>zy08x+!;g8"
        "m*wR|3aqE%;inB6i3IL5(NI<%nUwp09yy=5I;B@7#_Oa(jQOwp~?v58x3q~|qgX6kA3t4Xp*xa9f8MRdDX$`1w@wJxys>?9_mEzB"
        "uxv6a+dN$!MJOKH?yW>C%cuA&tf&pH19B38XE#sSCLJ$(>n1|k3e6Y799OH~_9naJbCN3uGK)kAdS`I;8G>?C6tirFYJ31kFHJQ6"
        "C0PnzOD`2drV&1n`I+~@Ps5d%%${{XMjY1`aIFi0c9%?QCK-9)NnnZ)c1sPZc>d2p-8Kito#dqFNe(-"
        "qk$Lhf+BjRO*V<NDJDsN_E$Ced;thGCq|jad~fNmT&;)tzX^xn6vKwN!6PlLFo8-"
        "_Xq6MT+X<X(J~z)4O$)<m8@D+N#h6Dt>cboCeaI`bTeg>Eqrhpa2*Gr&qErK5?|@q#TL=*#"
    ),
    "4:2:0": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@d+W<oW6&DvC8Xh|#Av=6iMpJxze0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-"
        "e0+R-e0+R-"
        "|G)qd2mm7hD+2){00I#K0}%oL!~hup00IL600000000000000000RO91p)uW04fjw0s#X91OWmE00000000010s{a95d{(<6BIE~"
        "K{AmfGeTi;lHvcv02l!P0|5a50000000000000010s{m9|HJ?(5dZ=K0tEsE1poj500000009C30}%ugAwf|wVG|=Vae*^(q44ql"
        "+5ij#0RRFK0}%i}09CDw(Hyw^LHMFb<g~k3k#c1@HD=>bWPOq-"
        "<Mq)c%<XLL+k(UCZ<^*;3K&@J`|T#q9EK;kzj#4zwmoN<o$`EAV3KP^c|ztnMg>a3%4xGD+=OSqYURXTyv2(aLG-"
        "40plUj>RwG`!#-yr^*8GU;XX)7mU(7AYtu!zc1(@d?)*{aDF}h?5agBncb!kDzY^V7YF$+?gXI=P^#3dqgX>-"
        "ogvqra8#wBgClbqC{o2jSDttQDL<CEtVTFF6(OCTaq;E_-|eAf~O$ON2@X_lQe%#F-"
        "^tgV`{u=bYIQI_Tuw%E$*FeLX%D<!n*F0&|R`&HX}h^7eycv+zsB>S#Prb(Pmz`BnjqzF@#2pQIqCdS{1E9iqTF%SR%pHzXWTBzD"
        "=&PN_8TO|lx&KJ?7Vo#iZT478wg?(+@kL=XG9kV^GdQFX46)j0s0RGjTXveu;e1Ei2RH5`%My|Ae49(P7uC6wcGILg)+pMQ2B=Ua"
        "LQBPEPEB8%UVSFoJiFWsno;~8N006)gQAvyRC(OPa0u2Az"
    ),
    "4:4:0": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@d+W<oW6&DvC8Xh|#Av=6iMpJxze0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-"
        "e0+R-e0+R-"
        "|G)qd2mm7hD+2)%00I#K0}%oL!~hup0RRI50RR9100000000001ONjC0RsQT04fjw0s#X91OWmE00000000010s{a95d{(<6BIE~"
        "K{AmfGeTi;lHvcv02u)Q0|5a60000000000000010t5vE0RO}QDiHty1ONmB2m=5B00000000310s|2Q5)&aYQIQ2AGC^^Hp}`|z"
        "lK<KO3<CiG0ucid06ze#*2ZX#Tz(+@Qf@T{N7*8dKV35z=ZuBIxgoEpHHjegMv^%#F4iPmnNCe6OPSi)+qVUW(%&`7!dC5+dfMdN"
        "t?|0=qL5pyk6Gp?e4iCvg_P4~OSuTofYjv3*5;CrDnP=(MrT#<USN`IMR`KzIYtF`;x67|#fu>NQ#?|#cRsV9kF`?>X)S)?U2Oe3"
        "AglR>xfFGs-eYvg6yqBOQ8paPD*jSP*rXQihb6X#0)Vp|<C?}gw4md*Q~Zk0)R=8WXKBPZ2J~H;HM+JjD{YjV=BTnzViL#*lz1dp"
        "XG5hew~xZD@#0^=*S5(p&D7K7R+D6ramn+F8Pn#tkUl^p<a1O#ut~krEz@Ai;sNy8Ej1Z#VM}d{uA>4^bc=h4rU?XiS)mvt`>BIk"
        "%*M9;eS{=qZKMKy0ufm)r%`p8LpR!)Dw!s6I|AxFiZQ=CC<FAA;zJ)!2i<zUh%*Bb000T~L)j=o?r^@17_&rjUfoqK{D#|A%9W#3"
        "wNbR$oQ^zD@h8qdtpkUQ`48x)xIF1>YRIW-N~j0+sb1{;_@%?}S=NkumFLI%Qmd}=lMn`*ip|tmuC6wcGILU&3I?j}g7CE|-"
        "MY$ha!)7iQlg)1L#b-xS~53e+uk~O_llLL2-!y%@1+0$z!fVA#MxRQt>nM|*#"
    ),
    "4:1:1": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@d+W<oW6&DvC8Xh|#Av=6iMpJxze0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-"
        "e0+R-e0+R-"
        "|G)qd2mm7hD+2*R00I#K0}%oL!~hup00IL600000000000000000RL81p@!X04fjw0s;a61p@*H00000000010ssR95d{(xAu$v|"
        "Q8JMvGeTi;lHvcv02l!P0|5a50000000000000020|WpC|HJ?+5dZ-M0RjUB2><{900000009630}&wvF%lE-L1D4M(G(&hGEq`-"
        "f#Lt!01N{G00I#M5dc2`RxS<I9k~2K_Jx(%iI%k@?Amr^nlaZ0toIYoXS7WgU5Kw}UDs&PnX<++*I7V#-"
        "7vqcC*wa)2rB+zZsKX7pr9<rdhZB8GRneQ0Nki%f(~Kh-DTu)21n$vM{m~)GH+~WZ%zvjrM=?tFs{3HW!Ogi29c3hr?|0V$Uc<cX"
        "i_n)JjUkh9m?iND!Y30T&?c+9Hv00TI3U>#jOWknNRW|2#rpi#!_1BBugxOSqg5ga<Pp{+_saw&Z)bp!|hhHlFGYxK6N2Djkz?YH"
        "zO;k(6i<!t(e!S%H5%x?HbseDc9NONZ8>a4+69NSF@@Nz|=qh0)8R~6va`>aL&hX5QJIMx@vfk4X~?h5xjA1s^KU#3v2{hJQ61dh"
        "ux82eSk^W?=<o9D!3&T>29QGlk+0gHeBNN1=M*FvN^}y8-"
        "wChvX@4}#_lqI3a=%h3%Sz#7>!x)uj>dx4AY;U?NRM9vkqxn99b1HNmT&;(>oE5sb2m+*_*^zuNNGojh)L*?bcJXvU{JjAU+-"
        "UdMyySP5r(~?r(0MzI81C0MHPGpHgZ=`tV%{qiJBUzyH|"
    ),
    "4:1:0": (
        "|JeWA07C#24i6F!4HOa(5*HN|7#=bq9vmDVJuEIHGD$#8OGiLPMNnFEVo+6WRz*f+h-"
        "Gbedx3(1PGF6fjD41Ket~@d+W<oW6&DvC8Xh|#Av=6iMpJxze0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-"
        "e0+R-e0+R-"
        "|G)qd2mm7hD+2*S00I#K0}%oL!~hup0RRI50RR91000000000000ILA0R;cV04fjw0s;a61p@*H00000000010ssR95d{(xAu$v|"
        "Q8JMvGeTi;lHvcv02l!P0|5a50000000000000010|WvE|HJ?(5dZ-L0R{vI0000000000009635d#t-"
        "A~7?81W~c@6Jc?Jp~2Dr+5ij#0RRFK0}%i}0IL@U>W<ugAp1p?*@>35BJA3BXQqsG!RtN5^V#hwqRX)r?F+i?8WQY|AjtfdDDC><"
        "%$wU8+tY%>>2G;n1{K$C%)1ERfYX^3dV7l&EQ9Gy_JEhOIF5bpuq?Uu$?um{b~E(wg0JQl?k1WV3Ifb`uJIEQZ+E!mG6g!<Ad);<"
        "&~@pQ{{SK)Dyyo~d241AwOLNtH*ULiYn6;@R^_yv?n;}woIcfSIV`KUbLUfu#BIr?F}WFCMund;qPAmRqbqiXZ?uLIgHX1>MWewY"
        "K=AvrEDx{=J00epK1EjqqP;EDjS_xmEmLLAFJN6qkr+c;5uRTu=Kz=HJe0Gl48YVt00Mp`1Bzm(<v3?!w}^>XC7}zs()<}ltoPUT"
        "h?($M>)jLTLZliXVu@QESrsu!RRI3eI}wkmUj9GXo5WbJ7aXLGozGLdb(HMvp6Bfm5gy$=zYwFV?fPEa-"
        "rYTX>Uw|xXb6aii7ykVcIdh^nk);K|Je"
    ),
}

SUBSAMPLINGS = tuple(_PROBES)
"""Subsamplings that have a probe."""
